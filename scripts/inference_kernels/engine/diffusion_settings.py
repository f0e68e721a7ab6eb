"""What can be captured from SGLang's diffusion runtime: requests, flags, and the settings of a run.

One `Kind` an architecture. Standard library only, so that `--help` works anywhere.
"""

import hashlib
import os
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inference_kernels.capture.engine import PLUGIN, describe_hardware
from inference_kernels.capture.kinds import STEP_NAMES, Case, Kind
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import canonical_json, read_json
from inference_kernels.models.image.hooks import CACHED_PREFIX, EMPTY_PREFIX, GEMM_LAYERS
from inference_kernels.models.ltx.hooks import LTX_LAYERS, ONE_BY_ONE, STAGES
from inference_kernels.seeded.checkpoint import RECIPE_FILE, read_recipes

KINDS = {
    "image": Kind(
        cases={
            "text_to_image": Case("A red ceramic teapot on a wooden table", 1024, 1024),
            "landscape": Case("A lakeside village at sunrise", 1536, 1024),
            "edit": Case("Make the teapot blue", 1024, 1024, edits="text_to_image"),
            "transparent": Case("An orange cat on a transparent background", 1024, 1024),
        },
        model="qwen-image-2.1-turbo",
        pipeline="QwenImage21Pipeline",
        path_must_contain="qwen-image-2.1",
        size_step=32,
        smallest=(32, 32),
        layers=GEMM_LAYERS,
        default_layers=["attn.to_q", "attn.to_out.0", "img_mlp.gate_layer", "img_mlp.out"],
        default_steps=STEP_NAMES,
        first_step=[EMPTY_PREFIX],
        later_steps=[CACHED_PREFIX],
    ),
    "ltx25": Kind(
        cases={
            "text_to_video": Case("A camera moving toward a steaming teapot", 768, 448, frames=49),
            "image_to_video": Case(
                "The camera moves slowly around the teapot", 512, 320, frames=49, edits="text_to_image"
            ),
            "longer_video": Case("A boat crossing a lake at sunrise", 512, 320, frames=121),
        },
        model="ltx-2.5",
        pipeline="LTX2Pipeline",
        path_must_contain="ltx-2.5-diffusers",
        size_step=32,
        smallest=(64, 64, 9),
        layers=LTX_LAYERS,
        default_layers=list(LTX_LAYERS),
        default_steps=["early", "middle", "last"],
        # The decoder's first stage has a window of 7x7 latents of 32 pixels, its last one of 11 frames.
        decoder_layers=list(STAGES),
        decoder_smallest=(224, 224, 17),
        # The engine pins the eight distilled sigmas (configs/pipeline_configs/ltx_2_5.py).
        steps=8,
        sdpa=True,
        flags={"load_diffusion_decoder": True, "diffusion_decoder_tiling": False, "attention_backend": "torch_sdpa"},
        parameters={"fps": 24},
        several_outputs=ONE_BY_ONE,
    ),
}


@dataclass(frozen=True)
class Options:
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
    def decoder(self) -> bool:
        """Whether the diffusion decoder decodes."""
        layers = set(self.layers) & set(KINDS[self.kind].decoder_layers)
        return bool({KINDS[self.kind].layers[name] for name in layers} & set(self.definitions))

    @property
    def media(self) -> str:
        return "videos" if KINDS[self.kind].video else "images"

    @property
    def outputs(self) -> Path:
        """Folder of the images or videos that the engine made."""
        return self.run.parent / self.media


def settings(options: Options) -> dict[str, Any]:
    """Everything that must be equal for a run to be resumed; most of it goes into every record."""
    index = read_index(options)
    blocks = read_json(options.model_path / "transformer" / "config.json")["num_layers"]
    steps = step_numbers(options.steps, KINDS[options.kind].steps or len(index["sample_sigmas"]))
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
    """first, early, middle and last as step numbers from 0, of `count` steps."""
    numbers = {"first": 0, "early": 1, "middle": count // 2, "last": count - 1}
    return sorted({numbers[name] for name in names})


def read_index(options: Options) -> dict[str, Any]:
    kind, path = KINDS[options.kind], options.model_path / "model_index.json"
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


def describe_model(options: Options) -> dict[str, Any]:
    found = read_recipes(options.model_path)
    if found:
        document = found[0]
        return {
            "id": f"seeded/{KINDS[options.kind].model}",
            "revision": "seeded",
            "title": document["title"],
            "config_sha256": document["config_sha256"],
            "seed": document["seed"],
            "recipe": f"{document['generator']}: {document['rule']}",
        }
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


def engine_flags(options: Options) -> dict[str, Any]:
    """Keyword arguments of the engine that are the same on every machine (the model's path is not)."""
    flags = {
        "pipeline_class_name": KINDS[options.kind].pipeline,
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
    } | KINDS[options.kind].flags
    return flags | ({"attention_backend": options.attention_backend} if options.attention_backend else {})


def engine_environment(options: Options) -> dict[str, str]:
    fixed = {"SGLANG_PLUGINS": PLUGIN, "HF_HUB_OFFLINE": "1"}
    if options.device == "cpu":
        fixed["SGLANG_DIFFUSION_PLATFORM_OVERRIDE"] = "cpu"
    # Paths belong to the machine, not to the record.
    found = {
        name: value for name, value in os.environ.items() if name.startswith("SGLANG_") and not value.startswith("/")
    }
    return dict(sorted((found | fixed).items()))


def describe_engine(options: Options) -> dict[str, Any]:
    stub = "vllm._custom_ops: an empty stand-in on CPU, imported and never called"
    policy = [
        f"{modality} attention of the transformer: torch SDPA restricted to its math backend, output made contiguous"
        for modality, backend in options.sdpa_backends.items()
        if backend == "math"
    ]
    several = KINDS[options.kind].several_outputs if options.num_outputs > 1 else ""
    changes = [stub if options.device == "cpu" else "", *policy, several]
    return {
        "name": "sglang",
        "version": version("sglang"),
        "torch": version("torch"),
        "flags": engine_flags(options),
        "environment": engine_environment(options),
        "substitutions": [change for change in changes if change],
    }
