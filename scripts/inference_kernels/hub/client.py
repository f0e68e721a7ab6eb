"""A dataset repository on the Hugging Face Hub: what it lists, reading it, and how it fails.

Network access goes through huggingface_hub (extra `hub`), imported on first use.
"""

import email.utils
import hashlib
import importlib.util
import io
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import DatasetError, EnvironmentMissing

DEFAULT_REPOSITORY = "humanfia-lab/inference-kernels"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
# Answers that mean "later", not "never"; 429 is the rate limit: https://huggingface.co/docs/hub/rate-limits
BUSY = (408, 429, 500, 502, 503, 504)
# Longest silence of the server while it is asked for a listing: the library itself would wait forever.
STALL_S = 20.0
# Longest wait for a connection; hub/retry.py limits what repeated ones take together.
CONNECT_S = 5.0
# hf-xet (1.8.0) raises ConnectionError also for an answer, and gives the status in the text alone.
STATUS_TEXT = re.compile(r"HTTP status (?:client|server) error \((\d{3})\b")
# Modules whose exceptions mean that the connection failed: versions of huggingface_hub use different ones.
NETWORK_MODULES = ("httpx", "httpx2", "httpcore", "httpcore2")
NEVER_CONNECTED = ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror")
NEVER_CONNECTED_TEXT = re.compile(r"dns error|error trying to connect|client error \(Connect\)", re.IGNORECASE)


class HubError(DatasetError):
    """The Hub refused, or holds something else than the records say; trying again does not help."""


class HubBusy(HubError):
    """A failure that may pass. retry_after_s: the wait that the server asked for, or None."""

    def __init__(self, *, retry_after_s: float | None = None, **fields: str):
        super().__init__(**fields)
        self.retry_after_s = retry_after_s


class HubUnreachable(HubBusy):
    """No connection: no network, no such host, or nobody listens there."""


class WrongBytes(HubError):
    """Downloaded content whose hash differs from its name and listing."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a listing. sha256 is None for a file in plain git; git_sha1 is its blob id then."""

    path: str
    size: int
    git_sha1: str
    sha256: str | None


@dataclass(frozen=True)
class Outgoing:
    """One file to send: its path in the repository, its bytes or the file that holds them, its SHA-256."""

    path: str
    source: Path | bytes
    size: int
    sha256: str


@dataclass(frozen=True)
class HubReader:
    """Read a dataset repository. endpoint: None for HF_ENDPOINT or huggingface.co."""

    repository: str
    endpoint: str | None = None

    def commit_of(self, revision: str) -> str:
        """Return the commit that a branch, tag or commit names."""
        with translated(f"{self.repository} at {revision}"):
            return api(self.endpoint).repo_info(self.repository, repo_type="dataset", revision=revision).sha

    def files(self, commit: str) -> list[RemoteFile]:
        """List every file of a commit."""
        from huggingface_hub import RepoFile

        with translated(f"files of {self.repository}"):
            rows = api(self.endpoint).list_repo_tree(
                self.repository, recursive=True, revision=commit, repo_type="dataset"
            )
            return [
                RemoteFile(
                    row.path, row.lfs.size if row.lfs else row.size, row.blob_id, row.lfs.sha256 if row.lfs else None
                )
                for row in rows
                if isinstance(row, RepoFile)
            ]

    def download(self, path: str, commit: str, part: Path, size: int, late: Callable[[], bool]) -> None:
        """Append the bytes of `path` that `part` lacks. HubBusy once `late()`; what came stays in `part`.

        Not with hf_hub_download: it keeps no partial file between two runs (2.4.0), so a killed pull would
        start its largest tensors again.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        if part.exists() and part.stat().st_size > size:
            part.unlink()
        limit_waits()
        url = hf_hub_url(self.repository, path, repo_type="dataset", revision=commit, endpoint=self.endpoint)
        # Without `identity` the Hub compresses text, and lengths and ranges would mean other bytes.
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        with translated(path), _Part(part, path, late) as stream:
            if (start := stream.tell()) < size:
                # No tries of the library's own before the first byte: each would wait for a connection again.
                http_get(url, stream, resume_size=start, headers=headers, _nb_retries=0)


class _Part(io.FileIO):
    """A partial file that takes no more bytes once `late()`."""

    def __init__(self, part: Path, path: str, late: Callable[[], bool]):
        super().__init__(part, "ab")
        self.path, self.late = path, late

    def write(self, block: Any) -> int:
        if self.late():
            raise HubBusy(
                expected="the file in time",
                found=f"{self.tell():,} bytes",
                where=self.path,
                remedy="run the same command again: it resumes",
            )
        return super().write(block)


def require_package() -> None:
    """Raise EnvironmentMissing without huggingface_hub."""
    if not importlib.util.find_spec("huggingface_hub"):
        raise EnvironmentMissing(
            expected="the Python package huggingface_hub",
            found="not installed",
            where=sys.executable,
            remedy="python -m pip install '.[hub]'",
        )


def api(endpoint: str | None) -> Any:
    """Open huggingface_hub's interface. endpoint: None for HF_ENDPOINT or huggingface.co."""
    from huggingface_hub import HfApi

    limit_waits()
    return HfApi(endpoint=endpoint)


def limit_waits() -> None:
    """Keep the library from waiting without a limit, and from drawing progress bars."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    hooks = get_session().event_hooks
    if _raise_busy not in hooks["response"]:
        hooks["request"] = [*hooks["request"], _limit_silence]
        hooks["response"] = [*hooks["response"], _raise_busy]


def _limit_silence(request: Any) -> None:
    """Only of a GET: a large commit may take the Hub longer, and its batch has a limit of its own."""
    if request.method != "GET":
        return
    limits = request.extensions.get("timeout", {})
    limits = {key: STALL_S if value is None else value for key, value in limits.items()}
    request.extensions["timeout"] = limits | {"connect": CONNECT_S}


def _raise_busy(response: Any) -> None:
    """Leave waiting to hub/retry.py: the library sleeps as long as `Retry-After` asks, without a limit."""
    if response.request.method == "GET" and response.status_code in BUSY:
        raise status_error(response.status_code, response.headers, response.url.path)


def git_sha1(content: bytes) -> str:
    """Compute the id that git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def check_repository(name: str) -> None:
    """Raise HubError unless `name` is a repository id owner/name."""
    if not REPOSITORY.fullmatch(name):
        raise HubError(
            expected="a repository id owner/name",
            found=name,
            where="--repository",
            remedy="pass the id of a dataset repository",
        )


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn the library's failures into HubError or HubBusy."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise _hub_error(error, where) from error
    except Exception as error:
        if not _is_network(error):
            raise
        raise network_error(error, where) from error


def _hub_error(error: BaseException, where: str) -> HubError:
    """The cause may be wrapped: a failed upload arrives as the cause of a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HubError):
            return cause
        response = getattr(cause, "response", None)
        if response is not None:
            detail = getattr(cause, "server_message", None) or str(cause).splitlines()[0]
            return status_error(response.status_code, response.headers, where, detail)
        if isinstance(cause, ConnectionError) and (status := STATUS_TEXT.search(str(cause))):
            return status_error(int(status[1]), {}, where, str(cause).splitlines()[0])
        if isinstance(cause, (ConnectionError, TimeoutError)) or _is_network(cause):
            return network_error(cause, where)
        cause = cause.__cause__ or cause.__context__
    return HubError(
        expected="success",
        found=" ".join(str(error).split()) or type(error).__name__,
        where=where,
        remedy="see the Hub's answer",
    )


def _is_network(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in NETWORK_MODULES


def status_error(status: int, headers: Mapping[str, str], where: str, detail: str = "") -> HubError:
    """Build the error of an HTTP answer that is not 2xx."""
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


def network_error(error: BaseException, where: str) -> HubBusy:
    """Build the error of a connection that failed, or was never made."""
    unreachable = type(error).__name__ in NEVER_CONNECTED or NEVER_CONNECTED_TEXT.search(str(error))
    kind = HubUnreachable if unreachable else HubBusy
    return kind(
        expected="an answer",
        found=f"{type(error).__name__}: {error}".splitlines()[0],
        where=where,
        remedy="check the network and run the same command again",
    )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Read the seconds to wait from `Retry-After` (seconds or a date) or `RateLimit: "api";r=0;t=55`."""
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
