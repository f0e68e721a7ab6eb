"""Decide everything about a rented capture before anything is rented, and describe it for `--dry-run`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.cloud.estimates import Planned, capture_seconds, planned_cases, prepare_seconds, require_one_day
from inference_kernels.cloud.spec import (
    CAPTURES_VOLUME,
    CHECKPOINT,
    CONTAINER_BASE,
    DOWNLOADS,
    ENGINE_IMAGE,
    GPU,
    INVENTORY,
    LOG,
    JobSpec,
    Layout,
    capture_folder,
    model_volume,
)
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.registry import MEDIA, MODELS, PUBLISHED, find_profile

WORKER_CPUS, WORKER_MEMORY_GIB, CPUS_PER_GPU = 8, 32, 16


@dataclass(frozen=True)
class Choices:
    """The command line, checked for form. Names are those of the flags; capture_flags: what follows `--`.

    reference_image: a path in the container, or None. uploads: path in the captures volume -> local file.
    code_sha256: of what is uploaded. device: of the diffusion engine.
    """

    name: str
    kind: str
    code_sha256: str
    prepare_model: bool = False
    cases: list[str] | None = None
    num_outputs: int = 1
    max_output_tokens: int | None = None
    sdpa: dict[str, str] = field(default_factory=dict)
    reference_image: str | None = None
    uploads: dict[str, Path] = field(default_factory=dict)
    manifest: str | None = None
    image: str = ENGINE_IMAGE
    gpus: int | None = None
    seeded: bool = False
    model_revision: str | None = None
    timeout_seconds: int | None = None
    device: str = "cuda"
    capture_flags: tuple[str, ...] = ()


class CapturePlan:
    """Choices and what follows from them. CaptureError for unknown cases and for more than 24 hours."""

    def __init__(self, choices: Choices):
        self.choices, self.model = choices, PUBLISHED[choices.kind]
        self.media = MEDIA.get(choices.kind)
        self.profile = "seeded" if choices.seeded else "published"
        self.cases: list[Planned] = (
            []
            if choices.prepare_model
            else planned_cases(
                choices.kind, self.profile, choices.cases, choices.num_outputs, bool(choices.reference_image)
            )
        )
        estimate = prepare_seconds(choices.kind) if choices.prepare_model else capture_seconds(choices.kind, self.cases)
        self.seconds = require_one_day(choices.timeout_seconds or estimate)

    @property
    def gpus(self) -> int:
        if self.choices.prepare_model:
            return 0
        return self.choices.gpus or (1 if self.choices.seeded else self.model.gpus)

    @property
    def folder(self) -> str:
        return capture_folder(self.choices.name)

    @property
    def checkpoint(self) -> str:
        return self.model.folder + ("-seeded" if self.choices.seeded else "")

    @property
    def job_name(self) -> str:
        if self.choices.prepare_model:
            return f"prepare-{self.choices.kind}"
        return f"capture-{self.choices.name}"

    @property
    def lock_names(self) -> list[str]:
        """Name the locks: a preparation owns the model's volume, a capture its name and one slot per GPU it rents."""
        if self.choices.prepare_model:
            return [f"modal-volume-{model_volume(self.choices.kind)}"]
        return [f"modal-run-{self.choices.name}"] + [f"modal-{GPU}-{index}" for index in range(self.gpus)]

    def require_sendable(self) -> None:
        """CaptureError, before anything is rented, if a case cannot be sent from this checkout."""
        for case in self.cases:
            if case.missing:
                raise CaptureError(
                    expected="cases that can be sent",
                    found=case.missing,
                    where=case.name,
                    remedy="leave the case out, or complete the checkout",
                )

    def spec(self, layout: Layout, python: str) -> JobSpec:
        prepare = self.choices.prepare_model
        job = self._prepare_job(layout) if prepare else self._capture_job(layout, python)
        return JobSpec(
            name=self.job_name,
            command=[python, "-m", "inference_kernels.cloud.container", json.dumps(job)],
            volumes={"model": model_volume(self.choices.kind), "data": CAPTURES_VOLUME},
            gpus=self.gpus,
            cpus=WORKER_CPUS if prepare else CPUS_PER_GPU * self.gpus,
            memory_gib=WORKER_MEMORY_GIB if prepare else self.model.memory_gib,
            seconds=self.seconds,
            environment={"PYTHONPATH": str(layout.repository / "scripts"), "PYTHONUNBUFFERED": "1"},
        )

    def _places(self, layout: Layout) -> dict[str, Any]:
        return {
            "kind": self.choices.kind,
            "folder": self.checkpoint,
            "repository": str(layout.repository),
            "model": str(layout.model),
            "data": str(layout.data),
            "work": str(layout.work),
            "code_sha256": self.choices.code_sha256,
        }

    def _prepare_job(self, layout: Layout) -> dict[str, Any]:
        manifest = self.choices.manifest and layout.here(self.choices.manifest)
        return self._places(layout) | {
            "do": "prepare",
            "seeded": self.choices.seeded,
            "manifest": manifest,
            "revision": self.choices.model_revision,
        }

    def _capture_job(self, layout: Layout, python: str) -> dict[str, Any]:
        return self._places(layout) | {
            "do": "capture",
            "capture": self.folder,
            "command": self.capture_command(layout, python),
        }

    def capture_command(self, layout: Layout, python: str) -> list[str]:
        """Return the capture script's call in the container, where the model's id and revision are added."""
        choices = self.choices
        command = [
            python,
            str(layout.repository / "scripts" / MODELS[choices.kind].script),
            "--kind",
            choices.kind,
            "--model-path",
            str(layout.model / self.checkpoint),
            "--output-root",
            str(layout.work / "dataset"),
        ]
        for case in self.cases:
            command += ["--case", case.name]
        command += self._media_flags(layout) if self.media else self._text_flags()
        return command + list(choices.capture_flags)

    def _text_flags(self) -> list[str]:
        flags = ["--profile", self.profile]
        if self.choices.max_output_tokens:
            flags += ["--max-output-tokens", str(self.choices.max_output_tokens)]
        if self.choices.gpus:
            flags += ["--engine-flag", f"tp_size={self.gpus}"]
            flags += ["--engine-flag", f"ep_size={self.gpus}"] if self.model.expert_parallel else []
        return flags

    def _media_flags(self, layout: Layout) -> list[str]:
        flags = ["--device", self.choices.device, "--num-outputs", str(self.choices.num_outputs)]
        for modality, backend in self.choices.sdpa.items():
            flags += [f"--{modality}-sdpa-backend", backend]
        if self.choices.reference_image:
            flags += ["--reference-image", layout.here(self.choices.reference_image)]
        return flags

    def definitions(self) -> list[str]:
        """Return what can be captured; flags after `--` may choose fewer."""
        if self.media:
            return self.media.definitions(self.media.default_layers, self.media.default_steps)
        return list(find_profile(self.choices.kind, self.profile).layers)

    def expected_files(self) -> list[str]:
        """Name the files as far as they are known before: UUIDs and hashes follow from the contents."""
        if self.choices.prepare_model:
            return [f"{self.checkpoint}.{CHECKPOINT}"] + ([] if self.choices.seeded else [DOWNLOADS])
        media = []
        if self.media:
            ending = "mp4" if self.media.video else "png"
            numbers = range(self.choices.num_outputs)
            media = [f"results/{case.name}_{index}.{ending}" for case in self.cases for index in numbers]
        return (
            ["dataset/manifest.json"]
            + [f"dataset/counts/{case.name}.json" for case in self.cases]
            + ["dataset/calls/<uuid>.json", "dataset/validation/<uuid>.json"]
            + [f"dataset/blob/{name}/<sha256>.safetensors" for name in self.definitions()]
            + media
            + [LOG, INVENTORY]
        )

    def describe(self) -> dict[str, Any]:
        """Return what `--dry-run` prints as its last line."""
        model, container = self.model, Layout(CONTAINER_BASE)
        return {
            "name": self.choices.name,
            "kind": self.choices.kind,
            "model": model.title,
            "repositories": {item.id: self._pin(index) for index, item in enumerate(model.repositories)}
            if not self.choices.seeded
            else {},
            "seeded": self.choices.seeded,
            "gpu": GPU if self.gpus else None,
            "gpus": self.gpus,
            "image": self.choices.image,
            "volumes": [model_volume(self.choices.kind), CAPTURES_VOLUME],
            "timeout_seconds": self.seconds,
            "cases": {case.name: case.missing or "can be sent" for case in self.cases},
            "locks": self.lock_names,
            "expected_files": self.expected_files(),
            "command": self.spec(container, "python3").command
            if self.choices.prepare_model
            else self.capture_command(container, "python3"),
            "code_sha256": self.choices.code_sha256,
            "cost_inputs": self.cost_inputs(),
        }

    def _pin(self, index: int) -> str:
        given = self.choices.model_revision if index == 0 else None
        pinned = given or self.model.repositories[index].revision
        return pinned or "pinned in the volume at its first preparation"

    def cost_inputs(self) -> dict[str, float]:
        """Return upper bounds of what is billed; prices are not known here."""
        hours = self.seconds / 3600
        spec = self.spec(Layout(CONTAINER_BASE), "python3")
        return {
            "gpu_hours": round(self.gpus * hours, 2),
            "cpu_core_hours": round(spec.cpus * hours, 2),
            "memory_gib_hours": round(spec.memory_gib * hours, 2),
            "download_gb": self.model.gigabytes if self.choices.prepare_model else 0,
            "volume_gb_of_the_model": 0 if self.choices.seeded else self.model.gigabytes,
        }
