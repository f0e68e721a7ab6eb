"""The registry of engine models: complete, importable without packages, checkpoints as the records name them."""

import hashlib
import subprocess
import sys

import pytest

from inference_kernels.agentx.published import CONTEXT_LIMITS
from inference_kernels.core.files import canonical_json
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.models.registry import LANGUAGE_KINDS, MEDIA, MODELS, find_profile, hooks_module, seeded_pipeline
from inference_kernels.seeded.checkpoint import recipe_document

# SHA-256 of the recipe file of seed 3 with two blocks: it names every tensor, and captures name its recipes.
RECIPES = {
    "deepseek41": "1a578327a58e7cdc",
    "image": "e5bc150e6fbd6857",
    "ltx25": "dd7d9941740f26a9",
    "qwen-next": "8ac903e17b8a74df",
    "qwen3-next-gdn": "70d35326def9ed19",
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_can_be_captured_from_its_seeded_checkpoint(kind):
    model = MODELS[kind]
    assert bool(model.profiles) != bool(model.media)
    assert callable(hooks_module(kind).register)
    assert (REPOSITORY / "scripts" / model.script).is_file()


@pytest.mark.parametrize("kind", MODELS)
def test_the_recipes_of_a_seeded_checkpoint_stay_as_they_are(kind):
    document = recipe_document(seeded_pipeline(kind, 2), 3)
    assert document["kind"] == kind
    assert hashlib.sha256(canonical_json(document).encode()).hexdigest().startswith(RECIPES[kind])


def test_kinds_are_told_apart_by_what_captures_them():
    assert {*LANGUAGE_KINDS, *MEDIA} == MODELS.keys() == RECIPES.keys()


def test_the_trace_s_models_are_registered_with_their_contexts():
    """agentx imports nothing of the models, so it names the two kinds that the published cases belong to."""
    for kind, limit in CONTEXT_LIMITS.items():
        assert find_profile(kind, "published").flags["context_length"] == limit


def test_the_registry_and_the_plugin_need_no_package():
    code = "import inference_kernels.models.registry, inference_kernels_capture, sys; print('numpy' in sys.modules)"
    paths = [str(REPOSITORY / "scripts"), str(REPOSITORY / "scripts" / "sglang_plugin")]
    command = [sys.executable, "-S", "-E", "-c", f"import sys; sys.path[:0] = {paths}; {code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
