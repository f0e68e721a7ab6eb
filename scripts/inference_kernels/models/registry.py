"""The engine models by kind: the one place that names them. Importable without torch and without an engine.

A kind is what `--kind` takes, what a run's settings and a seeded recipe file say, and what names a model's volume.
`engine/agentx.py` adds the cases of agentx_shapes.json to the profiles rehearsal and published.
"""

from importlib import import_module
from types import ModuleType

from inference_kernels.capture.kinds import Kind
from inference_kernels.capture.requests import Profile
from inference_kernels.models.deepseek import spec as deepseek
from inference_kernels.models.deepseek.checkpoint import deepseek_checkpoint
from inference_kernels.models.gdn import spec as gdn
from inference_kernels.models.gdn.checkpoint import qwen3_next_checkpoint
from inference_kernels.models.image import spec as image
from inference_kernels.models.image.checkpoint import image_pipeline
from inference_kernels.models.ltx import spec as ltx
from inference_kernels.models.ltx.checkpoint import ltx_pipeline
from inference_kernels.models.model import EngineModel, Published
from inference_kernels.models.qwen import spec as qwen
from inference_kernels.models.qwen.checkpoint import qwen_next_checkpoint
from inference_kernels.seeded.checkpoint import Pipeline

MODELS = {
    "image": EngineModel(
        checkpoint=image_pipeline,
        hooks="inference_kernels.models.image.hooks",
        media=image.MEDIA,
        published=image.PUBLISHED,
    ),
    "qwen-next": EngineModel(
        checkpoint=lambda kind, blocks: qwen_next_checkpoint(kind),
        hooks="inference_kernels.models.qwen.hooks",
        profiles=qwen.PROFILES,
        published=qwen.PUBLISHED,
    ),
    "deepseek41": EngineModel(
        checkpoint=lambda kind, blocks: deepseek_checkpoint(kind),
        hooks="inference_kernels.models.deepseek.hooks",
        profiles=deepseek.PROFILES,
        published=deepseek.PUBLISHED,
    ),
    "ltx25": EngineModel(
        checkpoint=ltx_pipeline, hooks="inference_kernels.models.ltx.hooks", media=ltx.MEDIA, published=ltx.PUBLISHED
    ),
    "qwen3-next-gdn": EngineModel(
        checkpoint=lambda kind, blocks: qwen3_next_checkpoint(kind),
        hooks="inference_kernels.models.gdn.hooks",
        profiles=gdn.PROFILES,
    ),
}
LANGUAGE_KINDS = sorted(kind for kind, model in MODELS.items() if model.profiles)
MEDIA: dict[str, Kind] = {kind: model.media for kind, model in sorted(MODELS.items()) if model.media}
# What rented GPUs can capture.
PUBLISHED: dict[str, Published] = {kind: model.published for kind, model in MODELS.items() if model.published}
PROFILE_NAMES = sorted({name for model in MODELS.values() for name in model.profiles})
MODALITIES = list(dict.fromkeys(name for media in MEDIA.values() for name in media.modalities))


def find_profile(kind: str, name: str) -> Profile:
    return MODELS[kind].profiles[name]


def seeded_pipeline(kind: str, blocks: int = 2) -> Pipeline:
    """Return the seeded checkpoint of a kind. blocks: of a diffusion transformer; language models ignore it."""
    return MODELS[kind].checkpoint(kind, blocks)


def hooks_module(kind: str) -> ModuleType:
    """Import the hooks of a kind; only inside a worker of the engine."""
    return import_module(MODELS[kind].hooks)
