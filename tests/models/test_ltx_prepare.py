"""Preparing LTX-2.5 from a miniature distribution, with a miniature converter in a real git checkout."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.commands import command, require_one_line
from inference_kernels.models.ltx import prepare

TOKENIZER = b'{"version": "1.0", "model": {"vocab": {"a": 0}}}'
CONVERTER = """
import argparse, os, shutil
p = argparse.ArgumentParser()
for name in ("--dit_filename", "--output_path"): p.add_argument(name)
a = p.parse_args()
open(os.path.join(os.path.dirname(a.dit_filename), "..", "calls.txt"), "a").write("converted\\n")
if os.path.exists("fail-now"): raise SystemExit("no space left")
folder = os.path.join(a.output_path, "transformer")
os.makedirs(folder)
shutil.copy(a.dit_filename, os.path.join(folder, "model.safetensors"))
"""
# from_pretrained as in Diffusers; each class wants its own weights.
PACKAGE = """
import json, os
class Model:
    @classmethod
    def from_pretrained(cls, folder, output_loading_info=False):
        head = open(os.path.join(folder, "model.safetensors"), "rb").read()
        names = set(json.loads(head[8:8 + int.from_bytes(head[:8], "little")])) - {"__metadata__"}
        wanted = {"w", "tokenizer_json"} if cls is Transformer else {"v"}
        return cls(), {"missing_keys": wanted - names, "unexpected_keys": names - wanted}
class Transformer(Model): pass
class Vae(Model): pass
class Scheduler:
    @classmethod
    def from_pretrained(cls, folder): json.load(open(os.path.join(folder, "scheduler_config.json")))
"""


def make_distribution(folder: Path) -> dict[str, dict]:
    """Write the downloaded files; return their sizes and hashes, as the manifest has them."""
    (folder / "dit").mkdir(parents=True)
    (folder / "vae").mkdir()
    tokenizer = torch.frombuffer(bytearray(TOKENIZER), dtype=torch.uint8)
    save_file({"w": torch.ones(3), "tokenizer_json": tokenizer}, folder / "dit" / "all.safetensors")
    save_file({"v": torch.ones(2)}, folder / "vae" / "model.safetensors")
    (folder / "LICENSE").write_text("Accept me.\n")
    contents = {
        name: (folder / name).read_bytes() for name in ("dit/all.safetensors", "vae/model.safetensors", "LICENSE")
    }
    return {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in contents.items()}


def make_checkout(folder: Path) -> str:
    """Write and commit the miniature converter and package; return the commit."""
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "convert_ltx2_to_diffusers.py").write_text(CONVERTER)
    (folder / "src" / "diffusers").mkdir(parents=True)
    (folder / "src" / "diffusers" / "__init__.py").write_text(PACKAGE)

    def git(*arguments):
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        return subprocess.run(
            ["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", "converter")):
        git(*arguments)
    return git("rev-parse", "HEAD")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """run(*flags) -> Result of the command; attributes: manifest (to be changed), output, distribution."""
    distribution, checkout = tmp_path / "distribution", tmp_path / "diffusers"
    files = make_distribution(distribution)
    monkeypatch.setattr(prepare, "CONVERTER_COMMIT", make_checkout(checkout))
    monkeypatch.chdir(tmp_path)
    index = {
        "_class_name": "LTX2Pipeline",
        "transformer": ["diffusers", "Transformer"],
        "vae": ["diffusers", "Vae"],
        "scheduler": ["diffusers", "Scheduler"],
        "duration_head": [None, None],
    }

    def run(*flags):
        (tmp_path / "manifest.json").write_text(json.dumps(run.manifest))
        return command(
            "prepare_ltx.py",
            "--distribution",
            distribution,
            "--manifest",
            tmp_path / "manifest.json",
            "--diffusers",
            checkout,
            "--output",
            run.output,
            *flags,
        )

    run.manifest = {
        "files": files,
        "licenses": ["LICENSE"],
        "tokenizer": {"file": "dit/all.safetensors", "tensor": "tokenizer_json", "config": {"pad": "<pad>"}},
        "conversions": {
            "transformer": ["--dit_filename", "{distribution}/dit/all.safetensors", "--output_path", "{output}"]
        },
        "copies": {"vae": "vae"},
        "documents": {"model_index.json": index, "scheduler/scheduler_config.json": {"shift": 1.0}},
    }
    run.distribution, run.checkout, run.output = distribution, checkout, tmp_path / "LTX-2.5-Diffusers"
    return run


def test_a_whole_preparation(plan):
    result = plan()
    assert result.code == 0, result.err
    assert result.summary["run"] == [
        "verify",
        "licenses",
        "tokenizer",
        "convert transformer",
        "copy vae",
        "documents",
        "load",
    ]
    output = plan.output
    assert (output / "licenses" / "LICENSE").read_text() == "Accept me.\n"
    assert (output / "tokenizer" / "tokenizer.json").read_bytes() == TOKENIZER
    assert json.loads((output / "tokenizer" / "tokenizer_config.json").read_text()) == {"pad": "<pad>"}
    assert (output / "transformer" / "model.safetensors").exists()
    assert (output / "vae" / "model.safetensors").read_bytes() == (
        plan.distribution / "vae" / "model.safetensors"
    ).read_bytes()
    assert "vae: loaded" in (output / "logs" / "load.log").read_text()
    assert not (output / ".partial").exists()


def test_a_second_run_does_nothing(plan):
    plan()
    result = plan()
    assert result.summary["run"] == [] and (plan.distribution / "calls.txt").read_text() == "converted\n"


def test_an_interrupted_run_goes_on_where_it_stopped(plan, tmp_path):
    (tmp_path / "fail-now").touch()
    require_one_line_last(plan(), "convert transformer", "no space left", "convert_transformer.log")
    # What a killed copy leaves must not end up in the component that comes next.
    (plan.output / ".partial" / "left").mkdir(parents=True)
    (tmp_path / "fail-now").unlink()
    result = plan()
    assert result.code == 0 and result.summary["run"][0] == "convert transformer"
    assert sorted(path.name for path in (plan.output / "vae").iterdir()) == ["model.safetensors"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(plan):
    result = plan("--dry-run")
    assert result.code == 0 and not plan.output.exists() and result.summary["run"] == []
    assert "convert transformer: scripts/convert_ltx2_to_diffusers.py --dit_filename" in result.out


def test_a_changed_file_is_refused(plan):
    path = plan.distribution / "vae" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    require_one_line_last(plan(), "vae/model.safetensors", "SHA-256")
    path.write_bytes(b"")
    require_one_line_last(plan(), "vae/model.safetensors", "bytes")


def test_another_commit_and_a_changed_converter_are_refused(plan, monkeypatch):
    script = plan.checkout / "scripts" / "convert_ltx2_to_diffusers.py"
    script.write_text(script.read_text() + "\n")
    require_one_line_last(plan(), "with changes")
    script.write_text(CONVERTER)
    monkeypatch.setattr(prepare, "CONVERTER_COMMIT", "0" * 40)
    plan.output = plan.output.with_name("LTX-2.5-Diffusers-2")
    require_one_line_last(plan(), "0" * 40)


@pytest.mark.parametrize("name, problem", [("missing", "missing_keys"), ("extra", "unexpected_keys")])
def test_weights_that_do_not_fit_are_refused(plan, name, problem):
    tensors = {} if name == "missing" else {"v": torch.ones(2), "extra": torch.ones(1)}
    path = plan.distribution / "vae" / "model.safetensors"
    save_file(tensors, path)
    plan.manifest["files"]["vae/model.safetensors"] = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "size": path.stat().st_size,
    }
    require_one_line_last(plan(), "vae does not load strictly", problem)


def test_another_manifest_a_foreign_folder_and_a_bad_name_are_refused(plan, tmp_path):
    plan()
    plan.manifest["documents"]["scheduler/scheduler_config.json"]["shift"] = 2.0
    require_one_line(plan(), "begun with")
    plan.output = tmp_path / "LTX-2.5-Diffusers-other"
    plan.output.mkdir()
    (plan.output / "thesis.txt").touch()
    require_one_line(plan(), "empty folder")
    plan.output = tmp_path / "ltx"
    require_one_line(plan(), "ltx-2.5-diffusers")


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda m: m.pop("copies"), "the keys"),
        (lambda m: m["files"].update({"../x": {"sha256": "", "size": 0}}), "below a folder"),
        (lambda m: m["documents"].update({"/etc/x": {}}), "below a folder"),
        (lambda m: m["licenses"].append("NOTICE"), "licences"),
        (lambda m: m["licenses"].clear(), "at least one licence"),
        (lambda m: m["copies"].update({"transformer": "vae"}), "once"),
    ],
)
def test_a_wrong_manifest_is_refused(plan, change, words):
    change(plan.manifest)
    require_one_line(plan(), words)


def test_a_tokenizer_that_is_not_there_is_refused(plan):
    plan.manifest["tokenizer"]["tensor"] = "w"
    require_one_line_last(plan(), "uint8 tensor w", "F32")


def require_one_line_last(result, *fragments):
    """Like require_one_line, after the lines that report the steps."""
    line = result.err.splitlines()[-1]
    assert result.code == 2 and line.startswith("error: "), result
    assert all(fragment in line for fragment in fragments), line
