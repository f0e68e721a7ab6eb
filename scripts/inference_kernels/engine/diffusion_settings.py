"""The settings of a diffusion run: options, checks before the engine starts, what the records say of it."""

import hashlib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inference_kernels.capture.engine import describe_hardware, describe_seeded, recorded_environment
from inference_kernels.capture.kinds import Kind
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import canonical_json, read_json
from inference_kernels.models.registry import MEDIA
from inference_kernels.seeded.checkpoint import RECIPE_FILE, read_recipes


@dataclass(frozen=True)
class DiffusionOptions:
    """The command line, checked.

    sizes: (width, height) or (width, height, frames) by case. block: None for the middle one.
    sdpa_backends: "math", or "default" for the engine's choice, by modality.
    """

    kind: str
    model_path: Path
    run: Path
    cases: list[str]
    sizes: dict[str, tuple[int, ...]]
    num_outputs: int
    definitions: list[str]
    layers: list[str]
    steps: list[str]
    block: int | None
    device: str
    seed: int
    reference_image: Path | None = None
    model_id: str | None = None
    model_revision: str | None = None
    attention_backend: str | None = None
    sdpa_backends: dict[str, str] = field(default_factory=dict)

    @property
    def model(self) -> Kind:
        return MEDIA[self.kind]

    @property
    def decoder(self) -> bool:
        """Whether the diffusion decoder decodes."""
        layers = set(self.layers) & set(self.model.decoder_layers)
        return bool({self.model.layers[name] for name in layers} & set(self.definitions))

    @property
    def media(self) -> str:
        return "videos" if self.model.video else "images"

    @property
    def outputs(self) -> Path:
        """Folder of the images or videos from the engine."""
        return self.run.parent / self.media


def settings(options: DiffusionOptions) -> dict[str, Any]:
    """Return everything that must be equal for a run to be resumed; most of it goes into every record."""
    index = read_index(options)
    blocks = read_json(options.model_path / "transformer" / "config.json")["num_layers"]
    steps = step_numbers(options.steps, options.model.steps or len(index["sample_sigmas"]))
    block = blocks // 2 if options.block is None else options.block
    if block >= blocks:
        raise CaptureError(
            expected=f"--block below {blocks}",
            found=f"{block}",
            where=str(options.model_path),
            remedy="choose a block that the checkpoint has",
        )
    model = describe_model(options)
    return {
        "kind": options.kind,
        "class": "seeded" if "recipe" in model else "published",
        "model": model,
        "engine": describe_engine(options),
        "hardware": describe_hardware(options.device),
        "definitions": options.definitions,
        "cases": {case: list(options.sizes[case]) for case in options.cases},
        "num_outputs": options.num_outputs,
        "seed": options.seed,
        "selection": {
            "block": block,
            "layers": options.layers,
            "attention_steps": steps,
            "gemm_steps": sorted({steps[0], steps[-1]}),
        }
        | ({"sdpa_backends": options.sdpa_backends} if options.sdpa_backends else {}),
    }


def step_numbers(names: list[str], count: int) -> list[int]:
    """Translate first, early, middle and last to step numbers from 0, of `count` steps."""
    numbers = {"first": 0, "early": 1, "middle": count // 2, "last": count - 1}
    return sorted({numbers[name] for name in names})


def read_index(options: DiffusionOptions) -> dict[str, Any]:
    """Read model_index.json; CaptureError if the engine would not take the folder for this pipeline."""
    kind, path = options.model, options.model_path / "model_index.json"
    index = read_json(path)
    if index.get("_class_name") != kind.pipeline or not (kind.steps or "sample_sigmas" in index):
        raise CaptureError(
            expected=f"a {kind.pipeline} with its denoising schedule",
            where=str(path),
            found=str(index.get("_class_name")),
            remedy="pass the folder of a distilled (Turbo) checkpoint of this kind",
        )
    if kind.path_must_contain not in options.model_path.resolve().as_posix().lower():
        raise CaptureError(
            expected=f"a path that contains {kind.path_must_contain!r}",
            found=str(options.model_path),
            where=str(path),
            remedy="rename or link the folder: the engine goes by it",
        )
    return index


def describe_model(options: DiffusionOptions) -> dict[str, Any]:
    """Return a record's `model`; CaptureError for a published checkpoint that is not named."""
    found = read_recipes(options.model_path)
    if found:
        return describe_seeded(options.model.model, found[0])
    if not options.model_id or not options.model_revision:
        raise CaptureError(
            expected=f"{RECIPE_FILE}, or --model-id and --model-revision",
            found="neither",
            where=str(options.model_path),
            remedy="pass a seeded checkpoint, or name the published one and its revision",
        )
    documents = {
        path.relative_to(options.model_path).as_posix(): read_json(path)
        for path in sorted(options.model_path.rglob("config.json"))
    }
    return {
        "id": options.model_id,
        "revision": options.model_revision,
        "config_sha256": hashlib.sha256(canonical_json(documents).encode()).hexdigest(),
    }


def engine_flags(options: DiffusionOptions) -> dict[str, Any]:
    """Return the engine's keyword arguments, without the model's path, which differs between machines."""
    flags = {
        "pipeline_class_name": options.model.pipeline,
        "num_gpus": 1,
        "tp_size": 1,
        "sp_degree": 1,
        "performance_mode": "manual",
        "warmup_mode": "off",
        "enable_torch_compile": False,
        "enable_breakable_cuda_graph": False,
        "allow_bf16_reduced_precision_reduction": False,
        "batching_max_size": 1,
        "disable_conditioning_cache": True,
    } | options.model.flags
    return flags | ({"attention_backend": options.attention_backend} if options.attention_backend else {})


def engine_environment(options: DiffusionOptions) -> dict[str, str]:
    return recorded_environment({"SGLANG_DIFFUSION_PLATFORM_OVERRIDE": "cpu"} if options.device == "cpu" else {})


def describe_engine(options: DiffusionOptions) -> dict[str, Any]:
    """Return a record's `engine`, with everything that the capture changes in it."""
    stub = "vllm._custom_ops: an empty stand-in on CPU, imported and never called"
    policy = [
        f"{modality} attention of the transformer: torch SDPA restricted to its math backend, output made contiguous"
        for modality, backend in options.sdpa_backends.items()
        if backend == "math"
    ]
    several = options.model.several_outputs if options.num_outputs > 1 else ""
    changes = [stub if options.device == "cpu" else "", *policy, several]
    return {
        "name": "sglang",
        "version": version("sglang"),
        "torch": version("torch"),
        "flags": engine_flags(options),
        "environment": engine_environment(options),
        "substitutions": [change for change in changes if change],
    }
