"""Reading a dataset repository over the Hub's HTTP interface, with the standard library.

Not through huggingface_hub: its downloads keep no partial file between two runs (2.4.0), so a killed pull
would start its largest tensors again; and a public dataset can be pulled without another package this way.
Endpoints: https://huggingface.co/docs/hub/api (`/revision`, `/tree`, `/resolve`).
"""

import http.client
import importlib.util
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.hub.client import HubBusy, HubError, RemoteFile, network_error, status_error

BLOCK = 2**20
# Longest silence of the server in the middle of an answer.
STALL_S = 60.0
NEXT_PAGE = re.compile(r'<([^>]+)>\s*;\s*rel="next"')


def default_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """The user's token: HF_TOKEN, else the one that huggingface_hub keeps, if that is installed."""
    if value := os.environ.get("HF_TOKEN"):
        return value
    if not importlib.util.find_spec("huggingface_hub"):
        return None
    from huggingface_hub import get_token

    return get_token()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects to storage servers without handing them the token."""

    def redirect_request(self, request, *answer):
        new = super().redirect_request(request, *answer)
        if new and new.host != request.host:
            new.headers.pop("Authorization", None)
        return new


@dataclass(frozen=True)
class HttpReader:
    """A dataset repository at `endpoint`; stall_s: seconds of silence that end a request."""

    repository: str
    endpoint: str = field(default_factory=default_endpoint)
    stall_s: float = STALL_S

    def commit_of(self, revision: str) -> str:
        name = urllib.parse.quote(revision, safe="")
        answer, _ = self._json(f"{self.endpoint}/api/datasets/{self.repository}/revision/{name}")
        return answer["sha"]

    def files(self, commit: str) -> list[RemoteFile]:
        url: str | None = f"{self.endpoint}/api/datasets/{self.repository}/tree/{commit}?recursive=true"
        found = []
        while url:
            rows, headers = self._json(url)
            found += [_remote_file(row) for row in rows if row["type"] == "file"]
            following = NEXT_PAGE.search(headers.get("Link", ""))
            url = urllib.parse.urljoin(url, following[1]) if following else None
        return found

    def download(self, path: str, commit: str, part: Path, size: int, late: Callable[[], bool]) -> None:
        """Resume at the end of `part` with a Range request; a server that ignores it starts over.

        late: asked after each block; True ends the download, what came stays in `part`.
        """
        start = part.stat().st_size if part.exists() else 0
        if start > size:
            part.unlink()
            start = 0
        if start == size and part.exists():
            return
        url = f"{self.endpoint}/datasets/{self.repository}/resolve/{commit}/{urllib.parse.quote(path)}"
        # Without `identity` the Hub compresses text, and lengths and ranges would mean other bytes.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with self._open(url, headers) as answer, open(part, "ab" if answer.status == 206 else "wb") as stream:
            while block := answer.read(BLOCK):
                stream.write(block)
                if late():
                    raise HubBusy(
                        expected="the file in time",
                        found=f"{stream.tell():,} of {size:,} bytes",
                        where=path,
                        remedy="run the same command again: it resumes",
                    )
        arrived = part.stat().st_size
        if arrived < size:
            raise HubBusy(
                expected=f"{size:,} bytes",
                found=f"{arrived:,} bytes, then the connection ended",
                where=path,
                remedy="run the same command again: it resumes",
            )

    def _json(self, url: str) -> tuple[Any, Any]:
        with self._open(url, {}) as answer:
            content = answer.read()
            try:
                return json.loads(content), answer.headers
            except ValueError as error:
                raise HubError(
                    expected="JSON", found=repr(content[:60]), where=url, remedy="check HF_ENDPOINT"
                ) from error

    @contextmanager
    def _open(self, url: str, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET. Failures of the request, and of reading the answer, become Hub errors."""
        if secret := token():
            headers = headers | {"Authorization": f"Bearer {secret}"}
        request = urllib.request.Request(url, headers=headers | {"User-Agent": "inference-kernels"})
        where = urllib.parse.urlsplit(url).path
        try:
            opener = urllib.request.build_opener(_Redirects)
            with closing(opener.open(request, timeout=self.stall_s)) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                detail = error.headers.get("X-Error-Message") or error.reason
            raise status_error(error.code, error.headers, where, detail) from error
        except http.client.IncompleteRead as error:
            raise network_error(error, where) from error
        except (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
            raise network_error(error, where) from error


def _remote_file(row: dict[str, Any]) -> RemoteFile:
    large = row.get("lfs")
    return RemoteFile(
        row["path"],
        large["size"] if large else row["size"],
        row["oid"],
        large["oid"].removeprefix("sha256:") if large else None,
    )
