"""A writer without huggingface_hub, and what the Hub's tests share. No torch: batch processes import it."""

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from helpers.hub_fake import REPOSITORY
from inference_kernels.hub.client import Outgoing, network_error, status_error
from inference_kernels.hub.reader import HttpReader
from inference_kernels.hub.retry import Patience


@dataclass(frozen=True)
class PlainWriter:
    """The writer's interface in a few lines of urllib, for environments without the extra `hub`."""

    endpoint: str
    repository: str = REPOSITORY

    def upload(self, files: list[Outgoing]) -> list[str]:
        objects = [{"oid": item.sha256, "size": item.size} for item in files]
        url = f"{self.endpoint}/datasets/{self.repository}.git/info/lfs/objects/batch"
        answer = self._request("POST", url, json.dumps({"objects": objects}).encode())
        for item, told in zip(files, json.loads(answer)["objects"], strict=True):
            if "actions" in told:
                self._request("PUT", told["actions"]["upload"]["href"], _content(item))
        return [item.sha256 for item in files]

    def commit(self, files: list[Outgoing], copies: list[tuple[str, str]], known: list[str], message: str) -> str:
        large = [item for item in files if item.path.endswith(".safetensors")]
        if unsent := [item for item in large if item.sha256 not in known]:
            self.upload(unsent)
        lines = [{"key": "header", "value": {"summary": message}}]
        lines += [{"key": "lfsFile", "value": {"path": item.path, "oid": item.sha256}} for item in large]
        lines += [
            {"key": "file", "value": {"path": item.path, "content": base64.b64encode(_content(item)).decode()}}
            for item in files
            if item not in large
        ]
        lines += [{"key": "lfsFile", "value": {"path": target, "oid": Path(target).stem}} for _, target in copies]
        url = f"{self.endpoint}/api/datasets/{self.repository}/commit/main"
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return json.loads(self._request("POST", url, body))["commitOid"]

    def _request(self, method: str, url: str, body: bytes) -> bytes:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=20) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise status_error(error.code, error.headers, url, error.reason) from error
        except OSError as error:
            raise network_error(error, url) from error


def _content(item: Outgoing) -> bytes:
    return item.source if isinstance(item.source, bytes) else item.source.read_bytes()


class Waits:
    """A patience that does not wait, and remembers how long it should have."""

    def __init__(self, attempts: int = 4):
        self.seconds: list[float] = []
        self.patience = Patience(attempts=attempts, sleep=self.seconds.append)
        self.told: list[str] = []


def here(step, limit_s, where):
    """A step without a process of its own."""
    return step()


def reader(endpoint: str) -> HttpReader:
    return HttpReader(REPOSITORY, endpoint, stall_s=0.3)
