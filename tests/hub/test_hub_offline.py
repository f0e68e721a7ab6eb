"""No retry of what cannot succeed: no network ends soon and is said; a 404 is an answer, with hf-xet too."""
# ruff: noqa: F811  (fixtures are imported by name)

import hashlib
import time

import pytest
from huggingface_hub import close_session, constants

from helpers.commands import command
from helpers.hub_fake import REPOSITORY
from helpers.hub_toys import Waits, captured, checkout, hub, published  # noqa: F401
from inference_kernels.hub.client import HubBusy, HubError, HubReader, HubUnreachable, Outgoing, translated
from inference_kernels.hub.retry import Patience, run_limited, with_retries
from inference_kernels.hub.writer import HubWriter

# A name that never exists (RFC 2606), and a port that nobody listens on.
NOWHERE = ("http://hub.invalid", "http://127.0.0.1:1")


@pytest.mark.parametrize("endpoint", NOWHERE)
def test_no_connection_is_told_and_ends_within_20_s(endpoint):
    waits = Waits(attempts=8)
    with pytest.raises(HubUnreachable, match="check the network"):
        with_retries(lambda: HubReader(REPOSITORY, endpoint).commit_of("main"), waits.patience, waits.told.append)
    close_session()
    assert sum(waits.seconds) <= 20 and waits.told and "ConnectError" in waits.told[0]


def test_a_download_without_a_connection_ends_in_time(tmp_path):
    """The library's own six tries would take six seconds each time, or a minute in a network that drops packets."""
    start = time.monotonic()
    with pytest.raises(HubUnreachable):
        HubReader(REPOSITORY, NOWHERE[1]).download("docs/x", "main", tmp_path / "part", 9, lambda: False)
    close_session()
    assert time.monotonic() - start < 5


def test_the_command_without_a_network_ends_in_time(checkout, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(Patience, "wait_s", lambda *_: 0.1)
    result = command("sync_hub.py", "pull", "--root", checkout, "--repository", REPOSITORY, "--attempts", 3)
    close_session()
    assert result.code == 2 and "check the network" in result.err.splitlines()[-1]


def test_slow_failures_count_as_they_take(monkeypatch):
    clock = iter(range(0, 1000, 9))  # a try takes nine seconds
    monkeypatch.setattr("inference_kernels.hub.retry.time.monotonic", lambda: next(clock))
    waits, tries = Waits(attempts=8), []

    def step():
        tries.append(1)
        raise HubUnreachable(expected="an answer", found="nothing", where="here", remedy="check")

    with pytest.raises(HubUnreachable):
        with_retries(step, waits.patience, waits.told.append)
    assert sum(waits.seconds) + 9 * len(tries) <= 20


def test_no_connection_crosses_the_process_border_as_such():
    with pytest.raises(HubUnreachable):
        run_limited(Nowhere(), 20, "batch 1 of 1")


class Nowhere:
    """A step that can be pickled."""

    def __call__(self):
        return HubReader(REPOSITORY, NOWHERE[1]).commit_of("main")


def test_an_answer_between_starts_the_count_again():
    faults = [HubUnreachable, HubUnreachable, HubBusy] * 2
    waits = Waits(attempts=8)
    waits.patience = Patience(attempts=8, longest_wait_s=4, sleep=waits.seconds.append)

    def step():
        if faults:
            raise faults.pop(0)(expected="", found="", where="", remedy="")
        return "done"

    assert with_retries(step, waits.patience, waits.told.append) == "done"


@pytest.mark.parametrize(
    "text, busy",
    [
        ("Network error: Request error: HTTP status client error (404 Not Found), domain: http://x", False),
        ("Network error: HTTP status client error (403 Forbidden)", False),
        ("HTTP status server error (503 Service Unavailable)", True),
        ("HTTP status client error (429 Too Many Requests)", True),
        ("connection reset by peer", True),
    ],
)
def test_an_answer_in_the_text_of_a_connection_error_is_an_answer(text, busy):
    with pytest.raises(HubError) as caught, translated("upload"):
        raise ConnectionError(text)
    assert isinstance(caught.value, HubBusy) == busy


def test_a_404_with_xet_is_not_waited_for(hub, monkeypatch, tmp_path):
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "0")
    content = b"x" * 5000
    (tmp_path / "x").write_bytes(content)
    item = Outgoing("blob/a.safetensors", tmp_path / "x", len(content), hashlib.sha256(content).hexdigest())
    waits = Waits()
    with pytest.raises(HubError, match="404") as caught:
        with_retries(lambda: HubWriter(REPOSITORY, hub.endpoint).upload([item]), waits.patience, waits.told.append)
    assert not isinstance(caught.value, HubBusy) and not waits.seconds
