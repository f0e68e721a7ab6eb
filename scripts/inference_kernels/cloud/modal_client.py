"""Run captures on Modal: sandboxes, volumes of version 2, an image by digest. Written for the client 1.6.

Never run against the service: names and signatures are tested against the installed client only.
"""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from inference_kernels.cloud.spec import APP, CONTAINER_BASE, GPU, OUT_OF_TIME, UPLOADS, JobSpec, Layout
from inference_kernels.core.errors import CaptureError, EnvironmentMissing
from inference_kernels.core.layout import REPOSITORY

CLIENT = "1.6"
VOLUME_VERSION = 2  # only these can be committed by `sync` from inside, and hold more than 50,000 files
STOPPED_BY_PLATFORM = 137


def load_client() -> ModuleType:
    """Import the modal package; EnvironmentMissing without it."""
    try:
        import modal
    except ModuleNotFoundError as error:
        remedy = "pip install modal and run `modal setup`, or use --runner local"
        raise EnvironmentMissing(
            expected=f"the Modal client {CLIENT}", found="none", where="modal", remedy=remedy
        ) from error
    return modal


class ModalRunner:
    """image: registry reference, or id of a prepared Modal image (im-...). secret: with HF_TOKEN, or None."""

    python = "python3"

    def __init__(self, modal: ModuleType, image: str, secret: str | None = None, repository: Path = REPOSITORY):
        self.modal, self.reference, self.secret, self.repository = modal, image, secret, repository
        self.layout = Layout(CONTAINER_BASE)
        self.app = modal.App.lookup(APP, create_if_missing=True)

    def volume(self, name: str):
        return self.modal.Volume.from_name(name, create_if_missing=True, version=VOLUME_VERSION)

    def image(self):
        """Return the engine's image; this checkout's hooks and definitions are added when a container starts."""
        prepared = self.reference.startswith("im-")
        image = (
            self.modal.Image.from_id(self.reference)
            if prepared
            else self.modal.Image.from_registry(self.reference).entrypoint([])
        )
        for part in UPLOADS:
            source, target = self.repository / part, f"{self.layout.repository}/{part}"
            image = (
                image.add_local_dir(source, target, ignore=["**/__pycache__"])
                if source.is_dir()
                else image.add_local_file(source, target)
            )
        return image

    def start(self, spec: JobSpec) -> "ModalJob":
        secrets = [self.modal.Secret.from_name(self.secret)] if self.secret else []
        try:
            sandbox = self.modal.Sandbox.create(
                *spec.command,
                app=self.app,
                name=spec.name,
                image=self.image(),
                env=spec.environment,
                secrets=secrets,
                timeout=spec.seconds,
                gpu=f"{GPU}:{spec.gpus}" if spec.gpus else None,
                cpu=float(spec.cpus),
                memory=spec.memory_gib * 1024,
                volumes={f"{self.layout.base}/{place}": self.volume(name) for place, name in spec.volumes.items()},
            )
        except self.modal.exception.AlreadyExistsError as error:
            raise CaptureError(
                expected=f"no running sandbox {spec.name}",
                found="one",
                where=f"app {APP}",
                remedy="wait until it ends (it has a time limit), then use --retrieve-only, "
                "or run the same command again",
            ) from error
        return ModalJob(self.modal, sandbox)

    def upload(self, volume: str, files: dict[str, Path]) -> None:
        with self.volume(volume).batch_upload(force=True) as batch:
            for name, source in files.items():
                batch.put_file(source, f"/{name}")

    def read(self, volume: str, path: str) -> Iterator[bytes]:
        try:
            yield from self.volume(volume).read_file(path)
        except self.modal.exception.NotFoundError as error:
            raise FileNotFoundError(path) from error


class ModalJob:
    """A running sandbox."""

    def __init__(self, modal: ModuleType, sandbox):
        self.modal, self.sandbox, self.released = modal, sandbox, False

    def lines(self) -> Iterator[str]:
        rest = ""
        for text in self.sandbox.stdout:
            *whole, rest = (rest + text).split("\n")
            yield from whole
        if rest:
            yield rest

    def wait(self) -> int:
        try:
            self.sandbox.wait(raise_on_termination=False)
        except self.modal.exception.SandboxTimeoutError:
            return OUT_OF_TIME
        return STOPPED_BY_PLATFORM if self.sandbox.returncode is None else self.sandbox.returncode

    def release(self) -> None:
        if not self.released:
            try:
                self.sandbox.terminate()
            finally:
                self.sandbox.detach()
            self.released = True
