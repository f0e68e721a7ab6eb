"""Packing: bytes are copied unchanged, a difference of one byte is found, and the message names the command."""

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
    """Pack the toy definition and one solution of two files."""
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


SHARED = '"""A kernel."""\n\nimport torch\n\nfrom .constants import WIDTH, H\n\nSCALE = 2 * WIDTH\n'
CONSTANTS = "H = 2  # heads\nWIDTH = 3\n"


@pytest.fixture
def family(root) -> Path:
    """Add the solutions fast_a and fast_b of one shared source, each with its constants."""
    folder = root / "solutions" / "toy"
    (folder / "shared").mkdir()
    (folder / "shared" / "fast.py").write_text(SHARED)
    for name in ("fast_a", "fast_b"):
        (folder / name).mkdir()
        (folder / name / "constants.py").write_text(CONSTANTS)
        (folder / f"{name}.json").write_text(json.dumps({"name": name}))
    return folder


def test_constants_stand_where_the_shared_source_imports_them(root, family):
    assert len(pack.pack(root)) == 2 and pack.out_of_sync(root) == []
    expected = SHARED.replace("from .constants import WIDTH, H\n", CONSTANTS)
    for name in ("fast_a", "fast_b"):
        sources = json.loads((family / f"{name}.json").read_text())["sources"]
        assert sources == [{"path": "main.py", "content": expected}]
    (family / "shared" / "fast.py").write_text(SHARED + "# changed\n")
    assert len(pack.out_of_sync(root)) == 2


def test_a_shared_source_without_constants_is_packed_as_it_is(root, family):
    (family / "shared" / "fast.py").write_text("def run():\n    pass\n")
    shutil.rmtree(family / "fast_a")
    (family / "fast_b" / "constants.py").unlink()
    pack.pack(root)
    for name in ("fast_a", "fast_b"):
        assert "def run():" in json.loads((family / f"{name}.json").read_text())["sources"][0]["content"]


def test_a_folder_with_main_takes_no_shared_source(root, family):
    (family / "fast_a" / "main.py").write_text("# own\n")
    sources = pack.solution_sources(family / "fast_a.json")
    assert [item["content"] for item in sources] == [CONSTANTS, "# own\n"]


@pytest.mark.parametrize(
    "file, text, found",
    [
        ("fast_a/constants.py", "H = 2\n", "imports: H, WIDTH; found H;"),
        ("fast_a/constants.py", CONSTANTS + "D = 1\n", "imports: H, WIDTH; found D, H, WIDTH;"),
        ("fast_a/constants.py", "H =\n", "Python in constants.py"),
        ("fast_a/more.py", "", "nothing but constants.py in the solution's folder; found shared/fast.py, fast_a/"),
        ("shared/fast_b.py", "", "one shared source"),
        ("shared/fast.py", "def run():\n    pass\n", "imports: none; found H, WIDTH;"),
    ],
)
def test_what_cannot_be_joined_is_refused(root, family, file, text, found):
    (family / file).write_text(text)
    name = "fast_b_2" if file == "shared/fast_b.py" else "fast_a"  # starts with the names of two shared sources
    with pytest.raises(PackError) as error:
        pack.solution_sources(family / f"{name}.json")
    assert found in str(error.value)
