"""Capture from SGLang's language runtime: serve the requests of a run's cases, then validate what was recorded.

The engine ends its own process when a worker dies, so it runs in a child of the command: finished cases are
kept, and the same command goes on with the others.
"""

import hashlib
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from inference_kernels.capture.engine import PLUGIN, Report, describe_hardware, engine_output, set_environment
from inference_kernels.capture.llm_hooks import READY
from inference_kernels.capture.requests import Prompt, RequestCase, expected_definitions
from inference_kernels.capture.run import RunFolder
from inference_kernels.capture.validate import require_passed
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import canonical_json, read_json, write_json
from inference_kernels.engine.agentx import TracedCase, TracedPrompt, base_ids, cached_ranges, trace_record
from inference_kernels.engine.llm_settings import (
    LlmOptions,
    check_context,
    check_flags,
    engine_environment,
    engine_flags,
    output_tokens,
    settings,
)
from inference_kernels.engine.summary import replay_calls, text_summary

FLUSH_ATTEMPTS = 20


def capture(options: LlmOptions, serve_command: list[str], report: Report) -> dict[str, Any]:
    """Do the whole run, new or resumed, and return its summary. serve_command: runs `serve` with these options.

    CaptureError if a case fails, an expected operator was never captured, or a call is outside its tolerance;
    the manifest stays incomplete then.
    """
    run = open_run(options)
    if run.manifest["complete"]:
        report("the run is complete already")
        return text_summary(run, options.profile.cases)
    if pending_cases(options, run):
        code = subprocess.run(serve_command).returncode
        run = open_run(options)
        left = pending_cases(options, run)
        if code or left:
            raise CaptureError(
                expected=f"{len(options.cases)} cases",
                found=f"{', '.join(left)} not captured",
                where=f"engine process, exit code {code}",
                remedy=f"see above and {options.log}; the same command goes on",
            )
    run.require_operators(expected_definitions(options.profile, options.cases))
    require_passed(replay_calls(run, options.profile.ties, "cuda", report), str(run.root))
    run.complete()
    return text_summary(run, options.profile.cases)


def open_run(options: LlmOptions) -> RunFolder:
    """Open the run folder after all checks that need no engine."""
    check_flags(options)
    check_context(options)
    return RunFolder.open(options.run, settings(options))


def pending_cases(options: LlmOptions, run: RunFolder) -> list[str]:
    return [case for case in options.cases if case not in run.finished_cases]


def serve(options: LlmOptions, report: Report) -> None:
    """Start the engine and serve every pending case; runs in a process of its own."""
    run = open_run(options)
    set_environment(engine_environment(options, describe_hardware("cuda")), options.run)
    report(f"starting SGLang {version('sglang')}; its output: {options.log}")
    with engine_output(options.log) as console:

        def say(line: str) -> None:
            print(line, file=console, flush=True)

        if options.profile.phases:
            base_ids(options.model_path)  # refuse an unfit tokenizer before the engine loads
        started = time.monotonic()
        import sglang

        engine = sglang.Engine(model_path=str(options.model_path), **engine_flags(options))
        try:
            say(f"engine ready after {time.monotonic() - started:.0f} s")
            run.raise_hook_errors()
            require_hooks(run)
            for name in pending_cases(options, run):
                seconds = serve_case(options, run, engine, name)
                say(f"{name}: {seconds:.1f} s")
        finally:
            engine.shutdown()


def require_hooks(run: RunFolder) -> None:
    """CaptureError unless the plugin left its marker in the run folder; removes the marker."""
    marker = run.root / READY
    if not marker.exists():
        raise CaptureError(
            expected="hooks in the engine's scheduler",
            found="none",
            where="plugin " + PLUGIN,
            remedy="check that PYTHONPATH has scripts/sglang_plugin",
        )
    marker.unlink()


def serve_case(options: LlmOptions, run: RunFolder, engine: Any, name: str) -> float:
    """Flush, send the predecessor, then the target requests; return the seconds of the latter."""
    profile, case = options.profile, options.profile.cases[name]
    prompts, outputs = [tokens(options, prompt) for prompt in case.prompts], output_tokens(options, case)
    before = tokens(options, case.predecessor) if case.predecessor else None
    flush(engine)
    if before:
        check_answers(f"predecessor of {name}", [before], generate(engine, [before], [1]), [1], [(0, 0)])
    run.begin_case(name, describe_request(options, case, prompts, before))
    started = time.monotonic()
    answers = generate(engine, prompts, outputs)
    seconds = time.monotonic() - started
    run.raise_hook_errors()
    cached = cached_ranges(profile, case, prompts, before)
    counts = check_answers(name, prompts, answers, outputs, cached, profile.page_size)
    complete_requests(run, name, counts)
    run.finish_case(name, [], seconds)
    return seconds


def complete_requests(run: RunFolder, name: str, counts: dict[str, list[int]]) -> None:
    """Add what the engine reported to the records of the case."""
    for path in run.calls():
        call = read_json(path)
        request = call["record"]["request"]
        if request["case"] == name:
            kept = {key: value for key, value in request.items() if key != "keep"}
            call["record"]["request"] = kept | counts
            write_json(path, call)


def describe_request(
    options: LlmOptions, case: RequestCase, prompts: list[list[int]], before: list[int] | None
) -> dict[str, Any]:
    """Return the request as it goes into the records, and `keep`, which is for the hooks only."""
    digest = hashlib.sha256(canonical_json(prompts).encode()).hexdigest()
    request = {
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "output_tokens": output_tokens(options, case),
        "prompt_rule": options.profile.prompt_rule,
        "prompt_sha256": digest,
        "keep": case.keep,
    }
    if before:
        request["predecessor_tokens"] = len(before)
    if isinstance(case, TracedCase):
        request |= trace_record(options.profile, case, base_ids(options.model_path), prompts, before)
    return request


def tokens(options: LlmOptions, prompt: Prompt | TracedPrompt) -> list[int]:
    if isinstance(prompt, TracedPrompt):
        return prompt.tokens(base_ids(options.model_path))
    return prompt.tokens(options.profile.tokens, options.profile.image_token)


def generate(engine: Any, prompts: list[list[int]], new_tokens: list[int]) -> list[dict[str, Any]]:
    """Generate greedy tokens for all prompts, submitted together in this order. new_tokens: per prompt."""
    sampling = [{"temperature": 0, "max_new_tokens": count, "ignore_eos": True} for count in new_tokens]
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    return answers if isinstance(answers, list) else [answers]


def flush(engine: Any, wait: Callable[[float], None] = time.sleep) -> None:
    """Empty the caches; CaptureError if the engine keeps refusing because it is busy."""
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
    """Return the token counts of all requests; CaptureError if one is not as planned.

    cached: per request, smallest and largest number of prompt tokens from the cache, in whole pages.
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
