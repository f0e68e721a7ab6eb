"""A stand-in for the Modal client that records every call, so that a contract test can check each one."""

from types import SimpleNamespace
from typing import Any


class Fault(Exception):
    """Base of the fake's exceptions."""


EXCEPTIONS = {name: type(name, (Fault,), {}) for name in ("AlreadyExistsError", "NotFoundError", "SandboxTimeoutError")}
RESULTS = {
    "App.lookup": "App",
    "Image.from_id": "Image",
    "Image.from_registry": "Image",
    "Image.entrypoint": "Image",
    "Image.add_local_dir": "Image",
    "Image.add_local_file": "Image",
    "Volume.from_name": "Volume",
    "Secret.from_name": "Secret",
    "Sandbox.create": "Sandbox",
    "Volume.batch_upload": "Upload",
}
BATCH = "volume.AbstractVolumeUploadContextManager"


class Fake:
    """One class of the client or an object of it. Calls go to `modal.calls` as (class, method, arguments)."""

    def __init__(self, modal: "FakeModal", kind: str):
        self.modal, self.kind = modal, kind

    def __getattr__(self, name: str) -> Any:
        def call(*arguments, **keywords):
            self.modal.calls.append((self.kind, name, arguments, keywords))
            answer = self.modal.answers.get(f"{self.kind}.{name}")
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                return answer
            result = RESULTS.get(f"{self.kind}.{name}")
            return Fake(self.modal, BATCH if result == "Upload" else result) if result else None

        return call

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *details) -> None:
        self.modal.calls.append((self.kind, "__exit__", details, {}))

    @property
    def stdout(self) -> list[str]:
        return self.modal.output

    @property
    def returncode(self) -> int | None:
        return self.modal.returncode


class FakeModal:
    """answers: "Class.method" -> result or exception. output, returncode: of every sandbox."""

    def __init__(self):
        self.calls: list[tuple] = []
        self.answers: dict[str, Any] = {}
        self.output, self.returncode = ["first\nsec", "ond\n", "error: last"], 0
        self.exception = SimpleNamespace(**EXCEPTIONS)
        for kind in ("App", "Image", "Volume", "Sandbox", "Secret"):
            setattr(self, kind, Fake(self, kind))

    def of(self, kind: str, method: str) -> list[tuple]:
        return [call[2:] for call in self.calls if call[:2] == (kind, method)]
