"""Capture runs that must not be imported: one clear line, exit code 2, an unchanged target."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import toy
from helpers.commands import command, require_one_line
from inference_kernels.core.files import write_json
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.layout import POINTER_FIRST_LINE


class Run:
    """A copy of a complete toy run, with handles for damaging it."""

    def __init__(self, root: Path):
        self.root, self.manifest = root, root / "manifest.json"

    def edit(self, path: Path, change: Callable[[dict], None]) -> None:
        value = json.loads(path.read_text())
        change(value)
        write_json(path, value)

    def edit_manifest(self, change: Callable[[dict], None]) -> None:
        self.edit(self.manifest, change)

    def relist(self) -> None:
        """Update the manifest, so that only the content is wrong."""
        files = {
            path.relative_to(self.root).as_posix(): {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path != self.manifest
        }
        self.edit_manifest(lambda manifest: manifest.update(files=files))

    def call(self) -> Path:
        return sorted((self.root / "calls").glob("*.json"))[0]

    def edit_call(self, change: Callable[[dict], None]) -> None:
        self.edit(self.call(), change)
        self.relist()

    def validation(self) -> Path:
        return self.root / "validation" / self.call().name

    def blob(self, name: str = "x") -> Path:
        return self.root / json.loads(self.call().read_text())["workload"]["inputs"][name]["path"]


@dataclass(frozen=True)
class Refusal:
    label: str
    fragments: tuple[str, ...]
    corrupt: Callable[[Run], object]


REFUSALS: list[Refusal] = []


def refused(label: str, *fragments: str) -> Callable:
    def register(corrupt: Callable[[Run], object]) -> Callable[[Run], object]:
        REFUSALS.append(Refusal(label, fragments, corrupt))
        return corrupt

    return register


def run_case(label: str, corrupt: Callable[[Run], object], *fragments: str) -> None:
    refused(label, *fragments)(corrupt)


def manifest(change: Callable[[dict], object]) -> Callable[[Run], None]:
    return lambda run: run.edit_manifest(change)


run_case(
    "stray file",
    lambda run: (run.root / "notes.txt").write_text("x"),
    "run/notes.txt",
    "only files that manifest.json lists; found a stray file; remove it",
)
run_case(
    "stray tensor",
    lambda run: shutil.copyfile(run.blob(), run.blob().with_name("stray.safetensors")),
    "stray.safetensors",
    "a stray file",
)
run_case(
    "listed file missing",
    lambda run: run.validation().unlink(),
    "every file that manifest.json lists; found no such file",
)
run_case(
    "manifest of another version",
    manifest(lambda value: value.update(version=2)),
    "version 1",
    "('inference-kernels capture run', 2)",
)
run_case("manifest without its keys", manifest(lambda value: value.pop("files")), "the keys", "'files'")
run_case(
    "manifest of something else",
    lambda run: run.manifest.write_text('{"format": "other"}'),
    "version 1; found ('other', None)",
)
run_case("manifest is a list", lambda run: run.manifest.write_text("[]"), "version 1; found None")
run_case("half a manifest", lambda run: run.manifest.write_text(run.manifest.read_text()[:100]), "valid JSON")
run_case("no manifest", lambda run: run.manifest.unlink(), "manifest.json: expected a file; found nothing")
run_case(
    "incomplete run",
    manifest(lambda value: value.update(complete=False)),
    "a complete run; found 2 finished cases, not validated",
    "it resumes",
)
run_case("truncated tensor", lambda run: os.truncate(run.blob(), 20), "bytes; found 20 bytes; capture again")
run_case("longer call", lambda run: run.call().write_text(run.call().read_text() + "\n"), "expected a file of")


@refused("manifest misses a file", ".safetensors", "a stray file")
def unlisted(run: Run) -> None:
    name = run.blob().relative_to(run.root).as_posix()
    run.edit_manifest(lambda value: value["files"].pop(name))


@refused("tensor linked out of the run", "a path inside")
def outer_link(run: Run) -> None:
    blob = run.blob()
    blob.rename(run.root.parent / "away")
    blob.symlink_to(run.root.parent / "away")


@refused("call replaced by a link", "call.json", "stray file")
def linked_call(run: Run) -> None:
    call = run.call()
    call.rename(run.root / "call.json")
    call.symlink_to(run.root / "call.json")


@refused("call edited in place", "the content that manifest.json lists; found another SHA-256")
def same_size(run: Run) -> None:
    call = run.call()
    call.write_text(call.read_text().replace('"seed": 7', '"seed": 8'))


@refused("tensor linked inside the run", "a file; found a symbolic link")
def inner_link(run: Run) -> None:
    blob = run.blob()
    target = run.root / "blob" / toy.NAME / "target"
    blob.rename(target)
    blob.symlink_to(target)
    run.relist()


@refused("pointer in a run", "tensor bytes; found a Git LFS pointer")
def pointer(run: Run) -> None:
    run.blob().write_bytes(POINTER_FIRST_LINE + f"\noid sha256:{run.blob().stem}\nsize 1\n".encode())
    run.relist()


@refused("call without validation", "a validated call; found no validation result")
def not_validated(run: Run) -> None:
    run.validation().unlink()
    run.relist()


@refused("call outside its tolerance", "calls that replay within tolerance; found one that does not")
def failed(run: Run) -> None:
    run.edit(run.validation(), lambda result: result.update(passed=False))
    run.relist()


@refused("tensor that no call names", "tensors that a call names; found one that none names")
def unnamed(run: Run) -> None:
    shutil.copyfile(run.blob(), run.blob().with_name("0" * 64 + ".safetensors"))
    run.relist()


@refused("run without calls", "captured calls; found none")
def no_calls(run: Run) -> None:
    shutil.rmtree(run.root / "calls")
    run.relist()


def call_case(label: str, change: Callable[[dict], object], *fragments: str) -> None:
    refused(label, *fragments)(lambda run: run.edit_call(change))


call_case("edited UUID", lambda call: call["workload"].update(uuid="0"), "from its inputs; found 0")
call_case(
    "record of another workload",
    lambda call: call["record"].update(workload="00000000-0000-5000-8000-000000000000"),
    "from its inputs",
)
call_case(
    "unknown definition", lambda call: call["record"].update(definition="nobody"), f"one of: {toy.NAME}; found nobody"
)
call_case("missing input of a call", lambda call: call["workload"]["inputs"].pop("ids"), "an input ids; found none")
call_case(
    "random input of a call",
    lambda call: call["workload"]["inputs"].update(x={"type": "random"}),
    "input x of type safetensors; found type 'random'",
)
call_case("unknown key in a call's record", lambda call: call["record"].update(extra=1), "'extra' was unexpected")
call_case(
    "call without inputs", lambda call: call["workload"].pop("inputs"), "uuid, axes, inputs; found something else"
)
call_case("call with a list for inputs", lambda call: call["workload"].update(inputs=[]), "something else")
call_case("call without a record", lambda call: call.pop("record"), "a call: workload and record")
call_case("record is a number", lambda call: call.update(record=5), "a call: workload and record")
call_case("workload is a number", lambda call: call.update(workload=5), "something else")
call_case(
    "tensor outside the run",
    lambda call: call["record"]["outputs"]["y"].update(path="blob/../../y"),
    f"tensors in blob/{toy.NAME}/ of the run",
)
call_case(
    "absolute path in a call",
    lambda call: call["record"]["outputs"]["y"].update(path="/etc/passwd"),
    f"tensors in blob/{toy.NAME}/ of the run",
)
call_case("wrong axis of a call", lambda call: call["workload"]["axes"].update(N=4), "x (4, 8) bfloat16; found (")


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("captured")
    root = toy.toy_root(folder / "root")
    toy.captured_run(folder / "run", root)
    return folder / "run", root


@pytest.fixture
def copies(captured, tmp_path) -> tuple[Run, Path]:
    for source, name in zip(captured, ("run", "root")):
        shutil.copytree(source, tmp_path / name)
    return Run(tmp_path / "run"), tmp_path / "root"


def import_into(run: Run, root: Path):
    return command("capture_inputs.py", "--import-capture", run.root, "--output-root", root)


def test_the_sound_run_is_imported_and_a_second_time_changes_nothing(copies):
    run, root = copies
    first = import_into(run, root)
    assert (first.code, first.err) == (0, "") and first.summary["new_workloads"] == 2
    tree = toy.tree_bytes(root)
    assert import_into(run, root).summary == {"calls": 2, "new_workloads": 0, "tensors": 9, "new_tensors": 0}
    assert toy.tree_bytes(root) == tree


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.label)
def test_doubtful_runs_are_refused(copies, case):
    run, root = copies
    before = toy.tree_bytes(root)
    case.corrupt(run)
    require_one_line(import_into(run, root), *case.fragments)
    assert toy.tree_bytes(root) == before


def test_a_flipped_bit_is_found_while_copying_and_no_record_is_written(copies):
    run, root = copies
    content = bytearray(run.blob().read_bytes())
    content[-1] ^= 1
    run.blob().write_bytes(content)
    require_one_line(import_into(run, root), "content of hash", "capture again")
    assert not (root / "captures.jsonl").exists() and not (root / "workloads").exists()
    assert not (root / "blob" / "workloads" / toy.NAME / run.blob().name).exists()


def test_zero_rows_are_refused_by_the_definition(tmp_path):
    """The recorder keeps a call without rows; validation would call its comparison empty."""
    root = toy.toy_root(tmp_path / "root")
    run = toy.start_run(tmp_path / "run")
    toy.play_case(run, root, "empty", 0)
    for path in run.calls():
        write_json(
            run.root / "validation" / path.name, {"criterion": {}, "device": "cpu", "errors": {}, "passed": True}
        )
    run.complete()
    require_one_line(import_into(Run(run.root), root), "expected N >= 1; found N = 0")


def test_a_broken_rule_of_the_inputs_is_refused(copies):
    run, root = copies
    Run.edit(
        run,
        root / "definitions" / "toy" / f"{toy.NAME}.json",
        lambda definition: definition["constraints"].append("x[0, 0] == 77"),
    )
    require_one_line(import_into(run, root), "expected x[0, 0] == 77; found x = tensor [")
