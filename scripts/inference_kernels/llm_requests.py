"""Requests to an engine with token ids: flush, generate, and what its answers must say."""

import time
from collections.abc import Callable
from typing import Any

from .errors import CaptureError

FLUSH_ATTEMPTS = 20


def generate(engine: Any, prompts: list[list[int]], new_tokens: list[int]) -> list[dict[str, Any]]:
    """Greedy tokens of all prompts, submitted together in this order. new_tokens: for each prompt."""
    sampling = [{"temperature": 0, "max_new_tokens": count, "ignore_eos": True} for count in new_tokens]
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    return answers if isinstance(answers, list) else [answers]


def flush(engine: Any, wait: Callable[[float], None] = time.sleep) -> None:
    """Empty the caches; the engine refuses while it still works on something."""
    for _ in range(FLUSH_ATTEMPTS):
        answer = engine.flush_cache()
        if answer.success:
            return
        wait(0.5)
    raise CaptureError(
        expected="an idle engine whose cache can be flushed",
        found=answer.message or "a refusal",
        where="flush_cache",
        remedy="send the engine no requests of your own",
    )


def check_answers(
    name: str,
    prompts: list[list[int]],
    answers: list[dict],
    new_tokens: list[int],
    cached: list[tuple[int, int]],
    page: int = 1,
) -> dict[str, list[int]]:
    """Token counts of all requests; CaptureError if one of them is not as planned.

    cached: for each request, smallest and largest number of prompt tokens from the cache; whole pages.
    """
    found = {
        key: [int(answer["meta_info"][key]) for answer in answers]
        for key in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    pages = f" in pages of {page}" if page > 1 else ""
    hits = len(answers) == len(cached) and all(
        low <= count <= high and count % page == 0 for count, (low, high) in zip(found["cached_tokens"], cached)
    )
    for key, expected, holds in (
        ("prompt_tokens", [len(prompt) for prompt in prompts], None),
        ("completion_tokens", new_tokens, None),
        ("cached_tokens", ", ".join(f"{low} to {high}" for low, high in cached) + pages, hits),
    ):
        if not (found[key] == expected if holds is None else holds):
            raise CaptureError(
                expected=f"{key} {expected}",
                found=f"{found[key]}",
                where=name,
                remedy="see the engine's log: a request was clipped, or the cache missed",
            )
    return found
