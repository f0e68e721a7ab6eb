"""Write prompts for AgentX cases ("span-v1"): every 64-token block becomes a span of one authored text.

The original prompts are not public. A block's session and id decide where its span starts in the text's
tokens, so equal blocks give equal tokens, shared prefixes stay shared, and lengths are those of the trace.
The text is short: different blocks can give the same span, and a long prompt repeats the text many times.
"""

import hashlib
import re
import sys
from array import array
from collections.abc import Iterable
from typing import Any

from inference_kernels.agentx.shapes import Request
from inference_kernels.agentx.trace import BLOCK_SIZE
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.layout import REPOSITORY

AUTHORED = REPOSITORY / "prompts" / "coding_conversation.txt"
AUTHORED_SHA256 = "9065a39a9dab473b45fe4f4d28ccc1f2f8b876712e723012dc75463b22ed6fb8"
LEAST_TOKENS = 256
# Keys of a model's configuration that name ids of non-text tokens: one id, a list of ids, or null.
NOT_TEXT = re.compile(r"(bos|eos|pad)_token_id|(image|video|audio|vision)(_\w+)?_token_id")


def authored_text() -> str:
    """Read the text that all prompts are cut from. CaptureError if its bytes have changed."""
    content = AUTHORED.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != AUTHORED_SHA256:
        raise CaptureError(
            expected=f"SHA-256 {AUTHORED_SHA256}",
            found=found,
            where=str(AUTHORED),
            remedy="restore it from version control: prompts would differ from those recorded",
        )
    return content.decode()


def forbidden_ids(tokenizer: Any, config: dict[str, Any]) -> set[int]:
    """Collect ids that must not occur in a prompt: special tokens, begin, end, padding, images, video, audio.

    tokenizer: of the transformers library. config: the checkpoint's config.json, with nested ones.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {ident for ident, token in added.items() if token.special}
    return set(tokenizer.all_special_ids) | special | _ids_of_config(config)


def _ids_of_config(config: dict[str, Any]) -> set[int]:
    found: set[int] = set()
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _ids_of_config(value)
        elif NOT_TEXT.fullmatch(key) and value is not None:
            found |= set(value) if isinstance(value, list) else {value}
    return found


def base_tokens(ids: Iterable[int], forbidden: set[int], vocabulary: int) -> list[int]:
    """Check the authored text's tokens: at least 256, each below `vocabulary` and not forbidden. CaptureError.

    No token is removed: that would shift every span, and prompts of two tokenizer versions would differ.
    """
    base = list(ids)
    wrong = sorted({ident for ident in base if ident in forbidden or not 0 <= ident < vocabulary})
    if wrong:
        raise CaptureError(
            expected=f"text tokens below {vocabulary}",
            found=f"token ids {wrong[:5]}",
            where=str(AUTHORED),
            remedy="use the tokenizer of the served checkpoint",
        )
    if len(base) < LEAST_TOKENS:
        raise CaptureError(
            expected=f"at least {LEAST_TOKENS} tokens",
            found=str(len(base)),
            where=str(AUTHORED),
            remedy="use the tokenizer of the served checkpoint",
        )
    return base


def stand_in_tokens(text: str, low: int, high: int) -> list[int]:
    """Make tokens of a text for a seeded checkpoint without a tokenizer: one id in [low, high) per word.

    The id depends on the word alone, by SHA-256, so what the text repeats stays repeated.
    """
    words = re.findall(r"\s*\w+|\s*[^\w\s]", text)
    return [low + _number(word) % (high - low) for word in words]


def span_start(session: str, ident: int, tokens: int) -> int:
    """Return where the span of a block starts among the text's tokens."""
    return _number(f"{session}\0{ident}") % tokens


def prompt_token_ids(request: Request, base: list[int]) -> list[int]:
    """Write exactly `request.input_tokens` ids. Tokens after the blocks (none in AgentX) are never shared."""
    circle = base + base[:BLOCK_SIZE]
    prompt: list[int] = []
    for first, count in request.block_runs:
        for ident in range(first, first + count):
            start = span_start(request.session_id, ident, len(base))
            prompt += circle[start : start + BLOCK_SIZE]
    own = f"{request.session_id}\0tail\0{request.request_index}"
    for number in range(-(-(request.input_tokens - len(prompt)) // BLOCK_SIZE)):
        start = span_start(own, number, len(base))
        prompt += circle[start : start + BLOCK_SIZE]
    return prompt[: request.input_tokens]


def tokens_sha256(ids: Iterable[int]) -> str:
    """Hash the ids as little-endian 32-bit numbers; the hash of the text's tokens pins the tokenizer."""
    values = array("i", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return hashlib.sha256(values.tobytes()).hexdigest()


def token_lcp(first: list[int], second: list[int]) -> int:
    """Count equal leading tokens: at least 64 per shared block, more where spans begin alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # first[:low] == second[:low]; they differ, if at all, before high
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def expected_hit(shared_tokens: int, prompt_tokens: int, page: int) -> int:
    """Count prompt tokens that a prefix cache of whole pages reuses; the last token is always computed."""
    return min(shared_tokens, prompt_tokens - 1) // page * page


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
