"""span-v1: test vectors, lengths, shared prefixes, and tokens that must not be in a prompt."""

import hashlib
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_kernels.agentx import prompts as agentx_prompts
from inference_kernels.agentx.prompts import (
    authored_text,
    base_tokens,
    expected_hit,
    forbidden_ids,
    prompt_token_ids,
    span_start,
    stand_in_tokens,
    token_lcp,
    tokens_sha256,
)
from inference_kernels.agentx.shapes import Request, load_cases
from inference_kernels.core.errors import CaptureError

pytestmark = pytest.mark.no_torch


BASE = list(range(1_000, 1_300))
VECTORS = [
    ("002001296e8a8c38ad9d7cc436d691afc602", 0, 1000, 128),
    ("002001296e8a8c38ad9d7cc436d691afc602", 1, 1000, 899),
    ("002001296e8a8c38ad9d7cc436d691afc602", 15465, 1000, 276),
    ("trace_0026", 1, 777, 438),
]


@pytest.mark.parametrize("session, ident, tokens, start", VECTORS)
def test_starts_of_spans(session, ident, tokens, start):
    assert span_start(session, ident, tokens) == start


def by_definition(request: Request, base: list[int]) -> list[int]:
    """The rule, one token at a time."""

    def token(key: str, place: int) -> int:
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % len(base)
        return base[(start + place) % len(base)]

    ids = [ident for first, count in request.block_runs for ident in range(first, first + count)]
    keys = [f"{request.session_id}\0{ident}" for ident in ids]
    keys += [f"{request.session_id}\0tail\0{request.request_index}\0{number}" for number in range(100)]
    return [token(keys[place // 64], place % 64) for place in range(request.input_tokens)]


@pytest.mark.parametrize("tokens", [1, 63, 64, 200, 448, 449, 512, 700])
def test_prompts_follow_the_definition(tokens):
    request = Request("trace_0026", 5, ((3, 5), (900, 2)), tokens, 1)
    assert prompt_token_ids(request, BASE) == by_definition(request, BASE)


def test_every_shipped_prompt_has_its_length():
    base = base_tokens(stand_in_tokens(authored_text(), 100, 8_000), set(), 8_000)
    for case in load_cases().values():
        for request in case.requests:
            assert len(prompt_token_ids(request, base)) == request.input_tokens


def test_shared_blocks_are_shared_tokens_and_reach_the_published_hit():
    base = base_tokens(stand_in_tokens(authored_text(), 100, 8_000), set(), 8_000)
    case = load_cases()["full_context_p90"]
    first, second = (prompt_token_ids(request, base) for request in (case.predecessor, case.requests[0]))
    shared = token_lcp(first, second)
    assert shared >= 64 * case.shared_prefix_blocks
    assert expected_hit(shared, len(second), 256) == case.published["cached_tokens"]
    group = [prompt_token_ids(request, base) for request in load_cases()["overlap_p50"].requests]
    assert 34_304 <= token_lcp(group[0], group[1]) < 34_304 + 64


def test_sessions_do_not_share_prefixes():
    prompts = [prompt_token_ids(Request(session, 0, ((0, 20),), 1_280, 1), BASE) for session in ("a", "b")]
    assert token_lcp(*prompts) < 64


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
@settings(deadline=None)
def test_token_lcp(first, second):
    equal = [one == other for one, other in zip(first, second)]
    assert token_lcp(first, second) == (equal.index(False) if False in equal else len(equal))


@pytest.mark.parametrize(
    "shared, prompt, page, hit",
    [
        (0, 64, 64, 0),
        (64, 64, 64, 0),
        (65, 65, 64, 64),
        (549_504, 549_504, 256, 549_376),
        (541_952, 549_504, 256, 541_952),
        (542_000, 549_504, 256, 541_952),
        (100, 200, 256, 0),
    ],
)
def test_expected_hits(shared, prompt, page, hit):
    assert expected_hit(shared, prompt, page) == hit


def test_the_authored_text_is_pinned(tmp_path, monkeypatch):
    text = authored_text()
    assert text.isascii() and "\r" not in text and len(text) > 5_000
    (tmp_path / "text.txt").write_text(text + " ")
    monkeypatch.setattr(agentx_prompts, "AUTHORED", tmp_path / "text.txt")
    with pytest.raises(CaptureError, match="text.txt: expected SHA-256"):
        authored_text()


def test_stand_in_tokens_are_one_a_word():
    tokens = stand_in_tokens("self.get(path) self.get", 10, 1_000)
    assert tokens[1:3] == tokens[-2:]
    assert len(tokens) == 9 and all(10 <= token < 1_000 for token in tokens)
    text = stand_in_tokens(authored_text(), 0, 8_000)
    assert len(text) > 1_000 and len(set(text)) > 400


def test_tokens_hash():
    assert tokens_sha256([1, 70_000]) == hashlib.sha256(struct.pack("<2i", 1, 70_000)).hexdigest()


def test_forbidden_ids():
    tokenizer = SimpleNamespace(
        all_special_ids=[0, 1],
        added_tokens_decoder={7: SimpleNamespace(special=True), 8: SimpleNamespace(special=False)},
    )
    config = {
        "bos_token_id": 2,
        "eos_token_id": [3, 4],
        "pad_token_id": None,
        "image_token_id": 5,
        "vision_start_token_id": 6,
        "vocab_size": 9,
        "text_config": {"eos_token_id": 10, "hidden_size": 11},
    }
    assert forbidden_ids(tokenizer, config) == {0, 1, 2, 3, 4, 5, 6, 7, 10}


@pytest.mark.parametrize(
    "ids, fragment",
    [
        ([*BASE, 5], "token ids [5]"),
        ([*BASE, 2_000], "token ids [2000]"),
        ([*BASE, -1], "token ids [-1]"),
        (BASE[:255], "at least 256 tokens; found 255"),
    ],
)
def test_tokens_that_cannot_be_used(ids, fragment):
    assert base_tokens(BASE, {5}, 2_000) == BASE
    with pytest.raises(CaptureError) as refusal:
        base_tokens(ids, {5}, 2_000)
    assert fragment in refusal.value.line()
