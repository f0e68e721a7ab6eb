"""Writing to a dataset repository through huggingface_hub (extra `hub`): objects, commits, copies."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inference_kernels.core.errors import EnvironmentMissing
from inference_kernels.hub.client import HubError, Outgoing, network_error, status_error

# Modules whose exceptions mean that the connection failed: versions of huggingface_hub use different ones.
NETWORK_MODULES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")


def require_package() -> None:
    if not importlib.util.find_spec("huggingface_hub"):
        raise EnvironmentMissing(
            expected="the Python package huggingface_hub",
            found="not installed",
            where=sys.executable,
            remedy="python -m pip install '.[hub]'",
        )


@dataclass(frozen=True)
class HuggingFaceWriter:
    """A dataset repository. endpoint: None for HF_ENDPOINT or huggingface.co."""

    repository: str
    endpoint: str | None = None
    revision: str = "main"

    def upload(self, files: list[Outgoing]) -> list[str]:
        additions = [_addition(item) for item in files]
        with translated(f"upload of {len(files)} files"):
            _api(self.endpoint).preupload_lfs_files(
                self.repository, additions, repo_type="dataset", revision=self.revision, free_memory=False
            )
        return [
            item.sha256
            for item, addition in zip(files, additions, strict=True)
            if getattr(addition, "_is_uploaded", False)
        ]

    def commit(self, files: list[Outgoing], copies: list[tuple[str, str]], known: list[str], message: str) -> str:
        from huggingface_hub import CommitOperationCopy

        operations: list[Any] = [_addition(item, item.sha256 in known) for item in files]
        operations += [CommitOperationCopy(source, target) for source, target in copies]
        with translated(f"commit of {len(operations)} files"):
            return (
                _api(self.endpoint)
                .create_commit(
                    self.repository, operations, commit_message=message, repo_type="dataset", revision=self.revision
                )
                .oid
            )


def _api(endpoint: str | None) -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    return HfApi(endpoint=endpoint)


def _addition(item: Outgoing, sent: bool = False) -> Any:
    """The file as huggingface_hub's operation. HubError for a file that changed: its record would be wrong.

    sent: the object is on the Hub already. There is no public way to say so; these two attributes are what
    the library itself sets after an upload, and tests/hub/test_hub_contract.py holds them to that.
    """
    from huggingface_hub import CommitOperationAdd

    addition = CommitOperationAdd(item.path, item.source)
    if addition.upload_info.size != item.size:
        raise HubError(
            expected=f"{item.size:,} bytes",
            found=f"{addition.upload_info.size:,}",
            where=item.path,
            remedy="leave the tree alone while it is published, and run the command again",
        )
    if sent:
        addition._upload_mode, addition._is_uploaded = "lfs", True
    return addition


@contextmanager
def translated(where: str) -> Iterator[None]:
    """The library's failures as HubError or HubBusy. Some arrive as the cause of a RuntimeError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise _hub_error(error, where) from error
    except Exception as error:
        if not _is_network(error):
            raise
        raise network_error(error, where) from error


def _hub_error(error: BaseException, where: str) -> HubError:
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if response is not None:
            detail = getattr(cause, "server_message", None) or str(cause).splitlines()[0]
            return status_error(response.status_code, response.headers, where, detail)
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
