"""Retrieval against a volume that truncates, lies and loses files, and the choice of calls."""

import hashlib
import json
from pathlib import Path

import pytest

from helpers import toy
from inference_kernels.capture.run import MANIFEST
from inference_kernels.cloud.retrieve import LAST, CallSelection, Retrieval
from inference_kernels.core.errors import CaptureError


class FakeRunner:
    """A volume in memory. faults: path -> contents of the next reads, or the exception that a read raises."""

    def __init__(self, files: dict[str, bytes]):
        self.files, self.faults, self.order = files, {}, []
        entries = {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
        }
        total = sum(len(data) for data in files.values())
        self.inventory = {"name": "toy", "state": {}, "bytes": total, "files": entries}

    def read(self, volume, path):
        name = path.removeprefix("captures/toy/")
        self.order.append(name)
        data = json.dumps(self.inventory).encode() if name == "inventory.json" else self.files.get(name)
        queue = self.faults.get(name, [])
        data = queue.pop(0) if queue else data
        if data is None:
            raise FileNotFoundError(path)
        if isinstance(data, BaseException):
            yield b"half"
            raise data
        yield data[: len(data) // 2]
        yield data[len(data) // 2 :]


@pytest.fixture
def runner():
    return FakeRunner(
        {
            "dataset/manifest.json": b'{"files": {}}',
            "dataset/calls/a.json": b"{}",
            "results/a.png": b"image",
            "engine.log": b"log",
        }
    )


def retrieve(runner, target: Path, selection=CallSelection(), fresh=True, lines=None) -> dict:
    return Retrieval(runner, "toy", target, (lines if lines is not None else []).append, fresh).run(selection)


def test_wrong_bytes_are_fetched_again_and_the_manifest_comes_last(runner, tmp_path):
    runner.faults["results/a.png"] = [b"imag", b"wrong"]
    lines: list[str] = []
    summary = retrieve(runner, tmp_path, lines=lines)
    assert summary["fetched"] == 4 and runner.order[-1] == LAST and len(lines) == 2
    (tmp_path / "engine.log").write_bytes(b"gol")
    assert retrieve(runner, tmp_path)["fetched"] == 1
    assert {name: (tmp_path / name).read_bytes() for name in runner.files} == runner.files


@pytest.mark.parametrize(
    "faults, raised, words",
    [
        ([b"x"] * 3, CaptureError, "retrieve-only"),
        ([ConnectionError("lost")], ConnectionError, "lost"),
        ([KeyboardInterrupt()], KeyboardInterrupt, None),
    ],
)
def test_a_broken_retrieval_leaves_nothing_to_import_and_goes_on(runner, tmp_path, faults, raised, words):
    runner.faults["engine.log"] = faults
    with pytest.raises(raised, match=words):
        retrieve(runner, tmp_path)
    assert not (tmp_path / LAST).exists() and not (tmp_path / "engine.log").exists()
    runner.inventory = None
    summary = retrieve(runner, tmp_path, fresh=False)
    assert (summary["fetched"], summary["present"]) == (3, 1) and runner.order.count("dataset/calls/a.json") == 1


def test_a_file_that_vanished_a_stray_one_and_a_path_that_leaves(runner, tmp_path):
    del runner.files["engine.log"]
    with pytest.raises(CaptureError, match="the file in the volume"):
        retrieve(runner, tmp_path / "vanished")
    (tmp_path / "stray" / "dataset" / "calls").mkdir(parents=True)
    (tmp_path / "stray" / "dataset" / "calls" / "old.json").write_text("{}")
    with pytest.raises(CaptureError, match="old.json"):
        retrieve(runner, tmp_path / "stray")
    runner.inventory["files"]["../evil"] = {"size": 0, "sha256": ""}
    with pytest.raises(CaptureError, match="inside the capture"):
        retrieve(runner, tmp_path / "evil")


def test_there_is_nothing_to_retrieve_before_the_inventory(tmp_path):
    runner = FakeRunner({})
    runner.faults["inventory.json"] = [None]
    with pytest.raises(CaptureError, match="a finished capture"):
        retrieve(runner, tmp_path)


def call(batch, context, phase="decode", definition="mixed"):
    axes = ({"B": batch} if batch else {"M": 3}) | ({"N4": context} if context else {})
    return {"workload": {"axes": axes}, "record": {"definition": definition, "operation": {"phase": phase}}}


CALLS = {
    "a": call(1, 5),
    "b": call(1, 9),
    "c": call(1, 7),
    "d": call(2, 9),
    "e": call(None, None),
    "f": call(1, 3, phase="prefill"),
    "g": call(3, 4),
    "h": call(None, None),
}


@pytest.mark.parametrize(
    "selection, kept",
    [
        (CallSelection(), "abcdefgh"),
        (CallSelection((2, 3)), "degh"),
        (CallSelection((7,)), "eh"),
        (CallSelection((), True), "abdefgh"),
        (CallSelection((1,), True), "abefh"),
    ],
)
def test_filters_choose_calls(selection, kept):
    assert "".join(sorted(selection.choose(CALLS))) == kept
    assert bool(selection) == (selection != CallSelection())


def test_a_filtered_run_lists_only_what_came_and_can_be_imported(tmp_path):
    """The toy definition has one variable axis, here read as the batch size."""
    root = toy.toy_root(tmp_path / "root")
    run = toy.captured_run(tmp_path / "run", root)
    runner = FakeRunner({f"dataset/{name}": data for name, data in toy.tree_bytes(run.root).items()})
    target, axis = tmp_path / "target", next(iter(json.loads(run.calls()[0].read_text())["workload"]["axes"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inference_kernels.cloud.retrieve.BATCH_AXES", (axis,))
        summary = retrieve(runner, target, CallSelection((5,)))
        manifest = json.loads((target / LAST).read_text())
        assert manifest["retrieval"]["calls_left_out"] == 1 and summary["files"] < len(runner.files)
        assert toy.import_run(target / "dataset", root) == 1
        assert retrieve(runner, target, CallSelection((5,)), fresh=False)["files"] == summary["files"]
        assert len([name for name in runner.order if name.endswith(".safetensors")]) < 2 * len(
            [name for name in runner.files if name.endswith(".safetensors")]
        )
    retrieve(runner, target)
    assert toy.tree_bytes(target / "dataset") == toy.tree_bytes(run.root) and MANIFEST in LAST
    assert toy.import_run(target / "dataset", root) == 1
