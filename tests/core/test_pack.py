"""Packing: bytes go in unchanged, one byte of difference is found, and the message is the command."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.commands import command, require_one_line
from inference_kernels.core import pack
from inference_kernels.core.errors import PackError, SchemaError

pytestmark = pytest.mark.no_torch


NAME = "toy_gather_scale"
DEFINITION = Path("definitions") / "toy" / f"{NAME}.json"


@pytest.fixture
def root(tmp_path) -> Path:
    """The toy definition and one solution of two files."""
    shutil.copytree(Path(__file__).parents[1] / "data" / "toy", tmp_path / "root")
    folder = tmp_path / "root" / "solutions" / "toy" / "mine"
    (folder / "helpers").mkdir(parents=True)
    (folder / "main.py").write_text("def run():\n    pass\n")
    (folder / "helpers" / "more.py").write_text("# more\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "main.pyc").write_bytes(b"\xff")
    folder.with_suffix(".json").write_text('{"name": "mine"}')
    pack.pack(tmp_path / "root")
    return tmp_path / "root"


def test_packed_texts_are_the_bytes_of_their_sources(root):
    definition = json.loads((root / DEFINITION).read_text())
    assert definition["reference"] == (root / DEFINITION.with_suffix(".py")).read_text()
    assert list(definition)[-1] == "reference"
    solution = json.loads((root / "solutions" / "toy" / "mine.json").read_text())
    assert solution["sources"] == [
        {"path": "helpers/more.py", "content": "# more\n"},
        {"path": "main.py", "content": "def run():\n    pass\n"},
    ]
    assert pack.out_of_sync(root) == [] and pack.pack(root) == []


@pytest.mark.parametrize("source", [DEFINITION.with_suffix(".py"), Path("solutions/toy/mine/helpers/more.py")])
def test_a_difference_of_one_byte_is_found_named_and_repaired(root, source):
    with open(root / source, "a") as stream:
        stream.write("\n")
    result = command("pack.py", "--root", root, "--check")
    require_one_line(result, "the packed source equal to the readable one", "run: python scripts/pack.py", code=1)
    assert pack.out_of_sync(root) != [], "--check must change nothing"
    written = command("pack.py", "--root", root)
    assert (written.code, written.err) == (0, "") and written.out.count("\n") == 1
    assert command("pack.py", "--root", root, "--check").code == 0


def test_another_layout_of_the_json_is_a_difference_too(root):
    for change in (lambda text: text + "\n", lambda text: text.replace("  ", " "), str.rstrip):
        text = (root / DEFINITION).read_text()
        (root / DEFINITION).write_text(change(text))
        assert [error.where for error in pack.out_of_sync(root)] == [str(DEFINITION)]
        pack.pack(root)
        assert (root / DEFINITION).read_text() == text


def test_every_difference_is_listed(root):
    for path in root.rglob("*.py"):
        path.write_text(path.read_text() + "# changed\n")
    assert len(command("pack.py", "--root", root, "--check").err.splitlines()) == 2


def test_other_fields_and_their_order_survive(root):
    value = json.loads((root / DEFINITION).read_text())
    value = {"reference": "old"} | dict(reversed(value.items())) | {"description": "\u00e4 \u2264 b"}
    (root / DEFINITION).write_text(json.dumps(value))
    pack.pack(root)
    text = (root / DEFINITION).read_text()
    expected = [key for key in value if key != "reference"] + ["reference"]
    assert list(json.loads(text)) == expected and "\u00e4 \u2264 b" in text and text.endswith("}\n")


def test_missing_sources(root):
    (root / DEFINITION.with_suffix(".py")).unlink()
    shutil.rmtree(root / "solutions" / "toy" / "mine")
    found = [str(error) for error in pack.out_of_sync(root)]
    assert len(found) == 2
    assert "the readable reference" in found[0] and "the readable sources mine/" in found[1]
    with pytest.raises(PackError):
        pack.pack(root)


def test_a_broken_file_does_not_hide_the_others(root):
    (root / "definitions" / "toy" / "zzz.json").write_text("[]")
    (root / "definitions" / "toy" / "zzz.py").write_text("")
    with open(root / "solutions" / "toy" / "mine" / "main.py", "a") as stream:
        stream.write("\n")
    first, second = pack.out_of_sync(root)
    assert isinstance(first, SchemaError) and "a JSON object; found list" in str(first)
    assert isinstance(second, PackError)


def test_retired_definitions_are_packed_too(root):
    shutil.copytree(root / "definitions", root / "retired" / "definitions")
    path = root / "retired" / DEFINITION.with_suffix(".py")
    path.write_text(path.read_text() + "\n")
    assert [error.where for error in pack.out_of_sync(root)] == [f"retired/{DEFINITION}"]
