"""Runs, batches and tensors for tests that drive the language-model hooks with small stand-ins of the engine.

Tensors come from the seeded generator, never from a random one.
"""

from types import SimpleNamespace

import torch

from helpers.seeded_bytes import recipe_bytes
from inference_kernels.capture.ranks import Ranks
from inference_kernels.capture.recorder import Recorder
from inference_kernels.capture.run import RunFolder
from inference_kernels.capture.validate import validate_run
from inference_kernels.seeded.recipes import ByteRecipe, byte_chunks, recipe_for_std

ONE_RANK = Ranks()


def drawn(name: str, *shape: int, std: float = 1.0, dtype=torch.bfloat16) -> torch.Tensor:
    """Return a seeded tensor; float32 first, so that any dtype gets the same values."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    data = recipe_bytes(recipe_for_std(std, 1, name, shape, "float32"))
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape).to(dtype)


def coded(name: str, *shape: int, form: str = "e4m3", low: int = 0, levels: int = 0) -> torch.Tensor:
    """Return uint8 bytes of a number format, from the seeded generator."""
    recipe = ByteRecipe(1, name, shape, form, low, levels)
    return torch.frombuffer(bytearray(b"".join(byte_chunks(recipe))), dtype=torch.uint8).view(shape)


class Mode:
    def __init__(self, phase: str):
        self.phase = phase

    def is_decode(self) -> bool:
        return self.phase == "decode"

    def is_idle(self) -> bool:
        return self.phase == "idle"


def batch(phase: str, size: int, **fields) -> SimpleNamespace:
    return SimpleNamespace(forward_mode=Mode(phase), batch_size=size, **fields)


class Toy:
    """A run in `root`, its recorder, and hooks of a class; `case` tells what to keep."""

    def __init__(self, root, repository, hook_class, layers: dict[str, int], **settings):
        base = {
            "kind": "toy",
            "class": "published",
            "definitions": list(layers),
            "selection": {"layers": layers},
            "substitutions": [],
            "model": {"id": "toy", "revision": "1", "config_sha256": "0" * 64},
            "engine": {"name": "toy", "version": "1", "flags": {}, "environment": {}, "substitutions": []},
            "hardware": {"device": "cpu"},
        }
        self.repository = repository
        self.run = RunFolder.open(root / "run", base | settings)
        self.recorder = Recorder(self.run.root, repository)
        self.hooks = hook_class(self.recorder, lambda: ONE_RANK)

    def case(self, name: str, requests: int, keep: dict) -> None:
        self.run.begin_case(name, {"prompt_tokens": [0] * requests, "keep": keep})

    def forward(self, forward_batch, work) -> None:
        """Run one forward pass of the model: `work()` inside `ModelRunner.forward`."""
        self.hooks.around_forward(lambda runner, batch: work(), None, forward_batch)

    def validated(self) -> list:
        """Finish, replay every call with the real reference and tolerance, and return the results."""
        self.run.raise_hook_errors()
        return list(validate_run(self.run, self.repository, "cpu"))

    def records(self) -> list[dict]:
        from inference_kernels.core.files import read_json

        return [read_json(path)["record"] for path in self.run.calls()]


def hooked(original, hook):
    """Wrap `original` as the engine's registry does."""
    return lambda *args, **kwargs: hook(original, *args, **kwargs)
