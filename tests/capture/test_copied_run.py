"""A run copied without its seeded weights is complete again after they are rewritten."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from helpers.llm_toys import Toy
from helpers.seeded_bytes import recipe_bytes
from inference_kernels.capture.importer import read_run
from inference_kernels.capture.run import files_below
from inference_kernels.models.deepseek.checkpoint import deepseek_checkpoint
from inference_kernels.models.deepseek.hooks import DeepseekHooks
from inference_kernels.models.deepseek.spec import ROUTER
from inference_kernels.seeded.materialize import run_generated_files
from models.test_llm_deepseek_hooks import router_inputs, router_pass


@pytest.fixture
def run(tmp_path, repository):
    """A finished run with one router call whose weight has a recipe."""
    (gate,) = [
        weight
        for component in deepseek_checkpoint("deepseek41").components
        for weight in component.weights
        if weight.name == "layers.1.ffn.gate.weight"
    ]
    recipe = gate.recipe(5)
    toy = Toy(
        tmp_path,
        repository,
        DeepseekHooks,
        {ROUTER: 1},
        recipes={gate.name: recipe.to_json()},
        **{
            "class": "seeded",
            "model": {"id": "toy", "revision": "seeded", "config_sha256": "0" * 64, "seed": 5, "recipe": "toy"},
        },
    )
    toy.case("case", 1, {"prefill": {ROUTER: [0]}})
    hidden, _, bias, bias_vl = router_inputs(3)
    weight = torch.frombuffer(bytearray(recipe_bytes(recipe)), dtype=torch.bfloat16).view(384, 5120)
    router_pass(toy, hidden, weight, bias, bias_vl, torch.tensor([5, 6, 7]))
    toy.run.finish_case("case", [], 0.0)
    assert [result.status for result in toy.validated()] == ["pass"]
    toy.run.complete()
    return toy.run.root


def test_a_copied_run_is_completed_from_its_recipes(run, tmp_path, repository):
    there = tmp_path / "there"
    shutil.copytree(run, there)
    (generated,) = run_generated_files(there)
    (there / str(generated.blob)).unlink()
    command = [sys.executable, repository / "scripts" / "materialize_seeded.py", "--run", there]
    for written in (1, 0):
        done = subprocess.run(command, capture_output=True, text=True)
        assert json.loads(done.stdout)["written"] == written, done.stderr
    assert files_below(run) == files_below(there)
    assert all((run / name).read_bytes() == (there / name).read_bytes() for name in files_below(run))


def test_the_complete_run_is_accepted_by_the_importer(run, repository):
    (call,) = read_run(run, repository)
    assert call.record["generated"]["weight"]["tensor"] == "layers.1.ffn.gate.weight"
    assert call.record["replay"]["passed"]
