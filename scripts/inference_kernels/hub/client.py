"""The thin interface to a dataset repository on the Hugging Face Hub: reading, sending, failing.

Reading (`hub/reader.py`) needs the standard library only, writing (`hub/writer.py`) huggingface_hub.
"""

import email.utils
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inference_kernels.core.errors import DatasetError

DEFAULT_REPOSITORY = "humanfia-lab/inference-kernels"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
# Answers that mean "later", not "never"; 429 is the rate limit: https://huggingface.co/docs/hub/rate-limits
BUSY = (408, 429, 500, 502, 503, 504)


class HubError(DatasetError):
    """The Hub refused, or holds something else than the records say; trying again does not help."""


class HubBusy(HubError):
    """A failure that may pass. retry_after_s: the wait that the server asked for, or None."""

    def __init__(self, *, retry_after_s: float | None = None, **fields: str):
        super().__init__(**fields)
        self.retry_after_s = retry_after_s


class WrongBytes(HubError):
    """Downloaded content of another hash than its name and listing say."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a listing. sha256 is None for a file in plain git; git_sha1 is its blob id then."""

    path: str
    size: int
    git_sha1: str
    sha256: str | None


@dataclass(frozen=True)
class Outgoing:
    """One file to send: its path in the repository, its bytes or the file they lie in, its SHA-256."""

    path: str
    source: Path | bytes
    size: int
    sha256: str


class Reader(Protocol):
    repository: str

    def commit_of(self, revision: str) -> str:
        """The commit that a branch, tag or commit names."""

    def files(self, commit: str) -> list[RemoteFile]:
        """Every file of a commit."""

    def download(self, path: str, commit: str, part: Path, size: int, late: Callable[[], bool]) -> None:
        """Append the bytes of `path` that `part` lacks. HubBusy if fewer than `size` came, or if `late()`."""


class Writer(Protocol):
    def upload(self, files: list[Outgoing]) -> list[str]:
        """Send the large objects among `files`; the hashes of those that the Hub now has."""

    def commit(self, files: list[Outgoing], copies: list[tuple[str, str]], known: list[str], message: str) -> str:
        """One commit: `files` added, `copies` (source, target) made by the Hub; the new commit's id.

        known: hashes that `upload` sent before, now or in an earlier run.
        """


def git_sha1(content: bytes) -> str:
    """The id that git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def check_repository(name: str) -> None:
    if not REPOSITORY.fullmatch(name):
        raise HubError(
            expected="a repository id owner/name",
            found=name,
            where="--repository",
            remedy="pass the id of a dataset repository",
        )


def status_error(status: int, headers: Mapping[str, str], where: str, detail: str = "") -> HubError:
    """The error of an HTTP answer that is not 2xx."""
    found = f"HTTP {status} {detail}".strip()
    if status in BUSY:
        return HubBusy(
            expected="an answer",
            found=found,
            where=where,
            remedy="run the same command again later",
            retry_after_s=retry_after(headers, time.time()),
        )
    remedy = {
        401: "log in: set HF_TOKEN or run `hf auth login`",
        403: "use a token with the right to do this",
        404: "check the repository, the revision and the token",
    }.get(status, "see the Hub's answer")
    return HubError(expected="success", found=found, where=where, remedy=remedy)


def network_error(error: Exception, where: str) -> HubBusy:
    return HubBusy(
        expected="an answer",
        found=f"{type(error).__name__}: {error}".splitlines()[0],
        where=where,
        remedy="check the network and run the same command again",
    )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait from `Retry-After` (seconds or a date) or the Hub's `RateLimit: "api";r=0;t=55`."""
    lower = {key.lower(): value.strip() for key, value in headers.items()}
    value = lower.get("retry-after", "")
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(email.utils.parsedate_to_datetime(value).timestamp() - now, 0.0)
        except ValueError:
            return None
    match = re.search(r"\br=0;\s*t=(\d+)", lower.get("ratelimit", ""))
    return float(match[1]) if match else None
