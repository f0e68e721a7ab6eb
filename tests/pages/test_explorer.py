"""The explorer page: its content, what it refuses, and that data never become markup."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.commands import SCRIPTS, command, require_one_line
from helpers.explorer_trees import (
    ATTACK,
    NAME,
    OP_TYPE,
    edit,
    hostile_tree,
    large_tree,
    result,
    small_tree,
    solution,
    write_results,
)
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import write_json
from inference_kernels.core.records import PUBLISHED_TARGET, read_captures, write_captures
from inference_kernels.pages.explorer import code as explorer_code
from inference_kernels.pages.explorer import page as explorer_page
from inference_kernels.pages.explorer.data import SHARED, SHOWN, architectures, explorer_data

SCRIPT = "build_explorer.py"
# Paths to tensors in the published dataset.
PUBLISHED_PATHS = 5493
pytest.importorskip("pygments", reason="Pygments (the extra `plot`) is not installed")


@pytest.fixture
def root(tmp_path, repository) -> Path:
    return small_tree(repository, tmp_path / "dataset")


def page_data(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_the_page_of_this_repository_has_everything_and_is_the_same_twice(repository):
    page = explorer_page.page_text(repository)
    assert explorer_page.page_text(repository) == page
    data, records = page_data(page), read_captures(repository)
    names = {path.stem for path in (repository / "definitions").glob("*/*.json")}
    assert {item["name"] for item in data["definitions"]} == names
    assert {item["workload"] for item in data["workloads"]} == {record["workload"] for record in records}
    assert len(data["solutions"]) == len(list((repository / "solutions").glob("*/*.json")))
    assert data["targets"] == {"published": 1104, "contest": 154}
    assert all(item["shapes"] and item["reference"]["text"] for item in data["definitions"])


def test_shared_parts_of_records_are_found_again(repository):
    data = explorer_data(repository)
    for record, row in zip(
        sorted(read_captures(repository), key=lambda item: item["workload"]),
        sorted(data["workloads"], key=lambda item: item["workload"]),
    ):
        unpooled = {key: data["pool"][row[key]] for key in SHARED}
        replay = row["replay"] | {"criterion": data["pool"][row["replay"]["criterion"]]}
        assert {key: value for key, value in row.items() if key not in ("axes", "inputs")} | unpooled | {
            "replay": replay
        } == record


def test_the_page_loads_nothing_and_its_policy_names_its_script_and_style(root):
    page = explorer_page.page_text(root)
    shell = page.replace(re.search(r'id="data">(.*?)</script>', page, re.S)[1], "")
    assert not re.findall(r"https?://(?!www\.w3\.org)", shell) and "{{" not in shell
    for kind in ("style", "script"):
        text = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page


def test_hostile_texts_stay_inside_the_data(tmp_path, repository):
    page = explorer_page.page_text(hostile_tree(repository, tmp_path / "dataset"))
    assert (page.count("<script"), page.count("</script")) == (2, 2)
    assert "onerror" not in page.replace(explorer_page.script_json(ATTACK)[1:-1], "").split('id="data">')[0]
    data = page_data(page)
    assert data["definitions"][0]["description"] == ATTACK and data["solutions"][0]["name"] == ATTACK
    assert list(data["pool"][data["workloads"][0]["engine"]]["flags"]) == ["__proto__", "constructor"]


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_in_the_page_is_ascii_without_markup_and_the_same_value(value):
    text = explorer_page.script_json(value)
    assert json.loads(text) == value and text.isascii() and not set("<>&") & set(text)


def test_the_page_needs_no_torch(root, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from inference_kernels.pages.explorer import page\n"
        "page.write_page(Path(sys.argv[2]), Path(sys.argv[3]))"
    )
    target = tmp_path / "page.html"
    done = subprocess.run([sys.executable, "-c", code, SCRIPTS, root, target], capture_output=True, text=True)
    assert done.stderr == "" and target.read_text() == explorer_page.page_text(root)


def test_a_written_page_passes_the_check_until_the_data_change(root):
    require_one_line(command(SCRIPT, "--root", root, "--check"), "found no file", SCRIPT, code=1)
    done = command(SCRIPT, "--root", root)
    assert (done.code, done.out) == (0, f"{root / 'results' / 'explorer.html'}\n")
    assert command(SCRIPT, "--root", root, "--check").code == 0
    edit(root / "definitions" / OP_TYPE / f"{NAME}.json", description="another")
    require_one_line(command(SCRIPT, "--root", root, "--check"), "found a difference", SCRIPT, code=1)


def test_a_folder_without_dataset_and_a_missing_package_are_explained(root, tmp_path, monkeypatch):
    require_one_line(command(SCRIPT, "--root", tmp_path / "nothing"), "expected a dataset root")
    monkeypatch.setattr(explorer_code.importlib.util, "find_spec", lambda name: None)
    require_one_line(command(SCRIPT, "--root", root), "the Python package pygments", "requirements/plot.txt")


def test_results_are_shown_by_known_keys(root):
    rows = [result(), result(solution="slow", geomean_us=None, passed=1)]
    write_results(root, *rows)
    assert explorer_data(root)["results"] == [{key: row[key] for key in SHOWN} for row in rows]


@pytest.mark.parametrize(
    "fields, found",
    [
        ({"geomean_us": "fast"}, "geomean_us = 'fast'"),
        ({"passed": None}, "passed = None"),
        ({"workloads": True}, "workloads = True"),
        ({"note": "more"}, "unknown key note"),
    ],
)
def test_a_malformed_result_is_refused(root, fields, found):
    path = write_results(root, result(), result(**fields))
    with pytest.raises(SchemaError) as caught:
        explorer_data(root)
    assert (caught.value.found, caught.value.where) == (found, f"{path}:2")


def test_a_result_of_an_unknown_definition_is_refused(root):
    write_results(root, result(definition="unknown"))
    require_one_line(command(SCRIPT, "--root", root), "found unknown")


def test_a_result_without_a_key_is_refused(root):
    write_results(root, {key: value for key, value in result().items() if key != "floor_ratio"})
    require_one_line(command(SCRIPT, "--root", root), "found no floor_ratio")


def test_records_and_workloads_must_belong_together(root):
    records = read_captures(root)
    (root / "workloads" / OP_TYPE / f"{NAME}.jsonl").unlink()
    require_one_line(command(SCRIPT, "--root", root), "expected a workload for each record")
    write_captures(root, [record | {"definition": "other"} for record in records])
    require_one_line(command(SCRIPT, "--root", root), "records of known definitions; found other")


def test_solutions_are_refused_or_listed_with_their_architectures(root):
    path = root / "solutions" / OP_TYPE / "fast.json"
    write_json(path, solution("fast", targets=("cpu", "cuda")))
    assert explorer_data(root)["solutions"][0]["architectures"] == ["cpu", "sm_90", "sm_100"]
    edit(path, definition="unknown")
    require_one_line(command(SCRIPT, "--root", root), "the solution of a known definition")
    edit(path, sources=[])
    require_one_line(command(SCRIPT, "--root", root), "a solution of the native schema")


def test_architectures_are_spelt_out_once():
    assert architectures(["SM_90", "cuda", "cpu"]) == ["cpu", "sm_90", "sm_100"]
    assert architectures(["sm_100"]) == ["sm_100"] and architectures(["NVIDIA H200"]) == ["nvidia h200"]


def runs(marks: str) -> list[tuple[int, str]]:
    return [(int(length), letter) for length, letter in re.findall(r"(\d+)(\D)", marks)]


def test_python_gets_colours_and_unknown_files_none():
    text = 'def run(x):  # "é"\n    return 0.5 * len(x)\n'
    found = explorer_code.highlighted("main.py", text)
    pieces, place = [], 0
    for length, letter in runs(found["marks"]):
        pieces.append((text[place : place + length], letter))
        place += length
    assert {("def", "k"), ("run", "f"), ('# "é"', "c"), ("0.5", "n"), ("len", "b")} <= set(pieces)
    assert explorer_code.highlighted("notes.unknown", text)["marks"] == f"{len(text)}."


@settings(deadline=None)
@given(st.text())
def test_marks_cover_the_text_as_javascript_counts_it(text):
    found = explorer_code.highlighted("main.py", text)
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    assert found["text"] == text and sum(length for length, _ in runs(found["marks"])) == units


def test_figures_are_recoloured_where_the_page_is_dark(repository):
    svg = explorer_code.shapes_image(repository, NAME)
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg.split("</style>")[1]))
    assert colours <= set(explorer_code.DARK) | {"#000000"}
    assert re.match(r"<\?xml.*?<svg[^>]*><style>@media \(prefers-color-scheme: dark\)", svg, re.S)
    assert explorer_code.shapes_image(repository, "nothing") is None


def test_the_published_size_fits_one_page(tmp_path, repository):
    page = explorer_page.page_text(large_tree(repository, tmp_path, PUBLISHED_TARGET))
    data = page_data(page)
    paths = {
        item["path"]
        for row in data["workloads"]
        for group in ("inputs", "outputs", "auxiliary")
        for item in row[group].values()
        if "path" in item
    }
    assert len(data["workloads"]) == PUBLISHED_TARGET and len(paths) >= PUBLISHED_PATHS
    assert len(page) < 8 * 2**20
