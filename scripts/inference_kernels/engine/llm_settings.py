"""The settings of a language-model run: options, checks before the engine starts, what the records say of it."""

import hashlib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inference_kernels.capture.engine import describe_hardware, describe_seeded, recorded_environment
from inference_kernels.capture.requests import Profile, RequestCase
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import canonical_json, read_json
from inference_kernels.engine.agentx import served_profile
from inference_kernels.seeded.checkpoint import read_recipes

# The engine lowers max_new_tokens silently when prompt and output come this close to the context.
CONTEXT_MARGIN = 7


@dataclass(frozen=True)
class LlmOptions:
    """The command line, checked. cases: in the profile's order. engine_flags: override the profile's."""

    kind: str
    model_path: Path
    run: Path
    cases: list[str]
    profile_name: str = "seeded"
    max_output_tokens: int | None = None
    context_limit: int | None = None
    engine_flags: dict[str, Any] = field(default_factory=dict)
    model_id: str | None = None
    model_revision: str | None = None

    @property
    def profile(self) -> Profile:
        return served_profile(self.kind, self.profile_name, self.max_output_tokens)

    @property
    def log(self) -> Path:
        return self.run.parent / "engine.log"


def output_tokens(options: LlmOptions, case: RequestCase) -> list[int]:
    limit = options.max_output_tokens
    return [count if limit is None else min(count, limit) for count in case.outputs]


def longest(options: LlmOptions, case: RequestCase) -> int:
    """Return the tokens of the longest sequence, prompt and output together."""
    return max(prompt.length + count for prompt, count in zip(case.prompts, output_tokens(options, case)))


def check_flags(options: LlmOptions) -> None:
    """CaptureError unless the engine runs eagerly and in order: hooks see nothing inside a replayed graph."""
    flags = engine_flags(options)
    required = {
        "cuda_graph_backend_decode": "disabled",
        "cuda_graph_backend_prefill": "disabled",
        "disable_overlap_schedule": True,
    }
    for name, value in required.items():
        if flags.get(name) != value:
            raise CaptureError(
                expected=f"{name}={value!r}",
                found=repr(flags.get(name)),
                where="engine flags",
                remedy="capture without CUDA graphs and without overlap scheduling",
            )
    if flags.get("cuda_graph_config") is not None:
        raise CaptureError(
            expected="no cuda_graph_config",
            found=str(flags["cuda_graph_config"]),
            where="engine flags",
            remedy="it would override the disabled backends",
        )


def check_context(options: LlmOptions) -> None:
    """CaptureError if the engine would clip a request."""
    limit = engine_flags(options)["context_length"]
    for name in options.cases:
        case = options.profile.cases[name]
        need = longest(options, case) + CONTEXT_MARGIN
        if need > limit:
            raise CaptureError(
                expected=f"a context of at least {need} tokens",
                found=f"{limit}",
                where=name,
                remedy="raise --context-limit, or leave the case out",
            )


def settings(options: LlmOptions) -> dict[str, Any]:
    """Return everything that must be equal for a run to be resumed; most of it goes into every record."""
    profile, hardware = options.profile, describe_hardware("cuda")
    model, recipes = describe_model(options)
    active = profile.substitutions if hardware["compute_capability"].startswith("9.") else {}
    environment = engine_environment(options, hardware)
    return {
        "kind": options.kind,
        "profile": options.profile_name,
        "model": model,
        "class": "seeded" if profile.seeded else "published",
        "engine": {
            "name": "sglang",
            "version": version("sglang"),
            "torch": version("torch"),
            "flags": engine_flags(options),
            "environment": environment,
            "substitutions": [f"{name}: {text}" for name, text in active.items()],
        },
        "hardware": hardware,
        "definitions": list(profile.layers),
        "selection": {"layers": profile.layers},
        "substitutions": list(active),
        "recipes": recipes,
        "max_output_tokens": options.max_output_tokens,
    }


def describe_model(options: LlmOptions) -> tuple[dict[str, Any], dict[str, dict]]:
    """Return a record's `model`, and the recipes of the weights that hooks store as inputs.

    CaptureError if the checkpoint is not one of the profile and kind, or a published one is not named.
    """
    path = options.model_path
    config = canonical_json(
        [
            {
                "config.json": read_json(path / "config.json"),
                "model.safetensors.index.json": read_json(path / "model.safetensors.index.json"),
            },
            {},
        ]
    )
    digest, found = hashlib.sha256(config.encode()).hexdigest(), read_recipes(path)
    if bool(found) != options.profile.seeded:
        raise CaptureError(
            expected=f"a checkpoint of the profile {options.profile_name}",
            where=str(path),
            found="a seeded one" if found else "no seeded_recipe.json",
            remedy="pass --profile, or write the checkpoint with make_seeded_checkpoint.py",
        )
    if not found:
        model_id = options.model_id or options.profile.checkpoint
        if not model_id or not options.model_revision:
            raise CaptureError(
                expected="--model-id and --model-revision",
                found="neither or one",
                where=str(path),
                remedy="name the published checkpoint and its pinned revision",
            )
        return {"id": model_id, "revision": options.model_revision, "config_sha256": digest}, {}
    document, recipes = found
    if (document["kind"], document["config_sha256"]) != (options.kind, digest):
        raise CaptureError(
            expected=f"kind {document['kind']} with the configuration of its recipe",
            found=f"kind {options.kind}, config {digest[:12]}",
            where=str(path),
            remedy="write the checkpoint again, or pass its kind",
        )
    gates = {name: recipe.to_json() for name, recipe in recipes.items() if name.endswith(".ffn.gate.weight")}
    return describe_seeded(document["kind"], document), gates


def engine_flags(options: LlmOptions) -> dict[str, Any]:
    """Return the engine's keyword arguments, without the model's path, which differs between machines."""
    limit = {"context_length": options.context_limit} if options.context_limit else {}
    return options.profile.flags | limit | options.engine_flags


def engine_environment(options: LlmOptions, hardware: dict[str, Any]) -> dict[str, str]:
    profile = options.profile
    blackwell = profile.blackwell_environment if hardware["compute_capability"].startswith("10.") else {}
    return recorded_environment(profile.environment | blackwell)
