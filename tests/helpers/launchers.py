"""What tests of the capture launchers share: a checkpoint without weights, and an engine that is replaced."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from inference_kernels.core.files import write_json
from inference_kernels.models.registry import seeded_pipeline
from inference_kernels.seeded.checkpoint import recipe_document

VARIABLES = (
    "PYTHONPATH",
    "INFERENCE_KERNELS_RUN",
    "INFERENCE_KERNELS_CHECKPOINT",
    "SGLANG_PLUGINS",
    "SGLANG_DIFFUSION_PLATFORM_OVERRIDE",
    "HF_HUB_OFFLINE",
)


def write_configuration(folder: Path, kind: str) -> Path:
    """Write configuration and recipe of a seeded checkpoint, without weights; return the folder."""
    pipeline = seeded_pipeline(kind)
    for name, document in (pipeline.documents | {"seeded_recipe.json": recipe_document(pipeline, 0)}).items():
        write_json(folder / name, document)
    return folder


def replace_diffusion_engine(monkeypatch, engine: type) -> None:
    """Let `engine` stand in for DiffGenerator, and keep the launcher's changes of this process to the test."""
    parent, module = ModuleType("sglang"), ModuleType("sglang.multimodal_gen")
    parent.__spec__, module.DiffGenerator = ModuleSpec("sglang", None), engine
    monkeypatch.setitem(sys.modules, "sglang", parent)
    monkeypatch.setitem(sys.modules, "sglang.multimodal_gen", module)
    for name in ("engine.diffusion_settings", "engine.diffusion"):
        monkeypatch.setattr(f"inference_kernels.{name}.version", lambda package: "0")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
