"""Finished cases on their way to the volume: what is committed when, and what a restart finds."""

import os
from pathlib import Path

import pytest

from helpers import toy
from inference_kernels.capture.run import MANIFEST, read_manifest
from inference_kernels.cloud.publish import Publisher
from inference_kernels.core.errors import CaptureError, ImportRefused

STATE = {"code_sha256": "1" * 64, "checkpoint": {}}


class Volume:
    """Counts commits, and refuses one while a file of it is open."""

    def __init__(self, folder: Path):
        self.folder, self.commits = folder, []

    def commit(self):
        for link in Path("/proc/self/fd").iterdir():
            target = os.path.realpath(link)
            assert not target.startswith(str(self.folder)) or Path(target).is_dir(), f"{target} is open"
        self.commits.append(list(read_manifest(self.folder / "dataset")["cases"]))


@pytest.fixture
def setting(tmp_path):
    """(dataset root, run on the container's disk, publisher, volume)"""
    root, volume = toy.toy_root(tmp_path / "root"), Volume(tmp_path / "volume" / "captures" / "toy")
    publisher = Publisher(volume.folder, tmp_path / "work", volume.commit)
    publisher.begin(STATE)
    return root, toy.start_run(tmp_path / "work" / "dataset"), publisher, volume


def play(run, root, case, rows):
    toy.play_case(run, root, case, rows)
    run.manifest["cases"][case]["images"] = [f"{case}_0.png"]
    run._save()
    folder = run.root.parent / "images"
    folder.mkdir(exist_ok=True)
    (folder / f"{case}_0.png").write_bytes(case.encode())


def test_each_case_is_committed_once_with_no_open_file(setting):
    root, run, publisher, volume = setting
    for number, case in enumerate(("a", "b", "c")):
        play(run, root, case, 3 + 2 * number)
        assert publisher.publish() and not publisher.publish()
    assert volume.commits == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert toy.tree_bytes(volume.folder / "dataset") == toy.tree_bytes(run.root)
    inventory = publisher.take_inventory()
    assert {f"dataset/{MANIFEST}", "results/a_0.png"} < set(inventory["files"])
    assert inventory["bytes"] == sum(
        path.stat().st_size
        for path in volume.folder.rglob("*")
        if path.is_file() and path.name not in ("inventory.json", "state.json")
    )


def test_a_restart_restores_what_is_listed_and_discards_the_rest(setting, tmp_path):
    root, run, publisher, volume = setting
    play(run, root, "a", 3)
    publisher.publish()
    published = toy.tree_bytes(volume.folder / "dataset")
    play(run, root, "b", 5)
    # Stopped between the tensors of case b and the manifest, while one more file was being written.
    stray = volume.folder / "dataset" / "calls" / "half.json"
    stray.write_text("{")
    (volume.folder / "dataset" / "blob" / ".tmp-left").write_text("half")
    fresh = Publisher(volume.folder, tmp_path / "fresh", volume.commit)
    assert fresh.restore() == ["a"] and not fresh.complete
    assert toy.tree_bytes(volume.folder / "dataset") == published
    assert toy.tree_bytes(tmp_path / "fresh" / "dataset") == published
    assert (tmp_path / "fresh" / "images" / "a_0.png").read_bytes() == b"a"
    assert not fresh.publish()
    resumed = toy.start_run(tmp_path / "fresh" / "dataset")
    play(resumed, root, "b", 5)
    assert fresh.publish() and volume.commits[-1] == ["a", "b"]


def test_a_volume_without_a_manifest_holds_nothing(setting, tmp_path):
    _, _, publisher, volume = setting
    (volume.folder / "dataset" / "calls").mkdir(parents=True)
    (volume.folder / "dataset" / "calls" / "half.json").write_text("{")
    assert Publisher(volume.folder, tmp_path / "fresh", volume.commit).restore() == []
    assert not (volume.folder / "dataset").exists()


def test_excluded_calls_leave_the_volume_and_may_come_again(setting):
    root, run, publisher, volume = setting
    play(run, root, "a", 3)
    publisher.publish()
    name = run.calls()[0].relative_to(run.root).as_posix()
    content, entry = (run.root / name).read_bytes(), run.manifest["files"].pop(name)
    (run.root / name).unlink()
    run._save()
    assert publisher.publish() and not (volume.folder / "dataset" / name).exists()
    (run.root / name).write_bytes(content)
    run.manifest["files"][name] = entry
    run._save()
    assert publisher.publish() and (volume.folder / "dataset" / name).read_bytes() == content


def test_damage_is_not_restored(setting, tmp_path):
    root, run, publisher, volume = setting
    play(run, root, "a", 3)
    publisher.publish()
    tensor = next((volume.folder / "dataset").rglob("*.safetensors"))
    tensor.write_bytes(tensor.read_bytes()[:-1] + b"?")
    with pytest.raises(ImportRefused, match="content of hash"):
        Publisher(volume.folder, tmp_path / "fresh", volume.commit).restore()


def test_other_code_or_another_checkpoint_does_not_go_on(setting, tmp_path):
    _, _, publisher, volume = setting
    publisher.begin(dict(STATE))
    with pytest.raises(CaptureError, match="begun with"):
        publisher.begin(STATE | {"code_sha256": "2" * 64})
    with pytest.raises(CaptureError, match="begun with"):
        publisher.begin(STATE | {"checkpoint": {"revision": "2"}})
