"""The figures: counts and labels; with Matplotlib, that they are drawn and stay the same."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.commands import SCRIPTS, command, process, require_one_line
from inference_kernels.core.errors import EnvironmentMissing, SchemaError
from inference_kernels.core.records import CLASSES
from inference_kernels.pages.figures import canvas, write
from inference_kernels.pages.figures import data as figure_data
from inference_kernels.pages.figures.ranges import number_text, range_entries, range_marks
from inference_kernels.pages.figures.roofline import roofline_entries, roofline_figure

SCRIPT = "plot_shape_distributions.py"
CLASS_OF = {"p": "published", "c": "contest", "s": "seeded"}
# Axes, as in older data, without descriptions; M before N in the definition, N before M in the workloads.
DEFINITION = {
    "name": "toy",
    "op_type": "toy",
    "description": "toy",
    "tags": [],
    "constraints": [],
    "reference": "",
    "axes": {"K": {"type": "const", "value": 4096}, "M": {"type": "var"}, "N": {"type": "var"}},
    "inputs": {
        "x": {"shape": ["M", "K"], "dtype": "bfloat16"},
        "y": {"shape": ["N"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"o": {"shape": ["M"], "dtype": "bfloat16"}, "ids": {"shape": ["M"], "dtype": "int32"}},
}


def workload(uuid: str, m: int, n: int) -> dict:
    return {"uuid": uuid, "axes": {"N": n, "M": m}, "inputs": {}}


def record(uuid: str, used: float | None = 0.5, **statistics: dict) -> dict:
    """A record whose class is the first letter of `uuid`; a contest one has no outputs."""
    data_class = CLASS_OF[uuid[0]]
    return {
        "workload": uuid,
        "class": data_class,
        "statistics": statistics,
        "outputs": {} if data_class == "contest" else {"o": {}, "ids": {}},
        "replay": {"errors": {"o": {"tolerance_used": used}, "ids": {"tolerance_used": 0.0}}},
    }


def numbers(low: float | None, high: float | None, zeros: float, broken: int = 0) -> dict:
    return {"min": low, "max": high, "zero_share": zeros, "non_finite": broken}


WORKLOADS = [
    workload("s1", 10, 1),
    workload("p1", 9, 20),
    workload("p2", 10, 1),
    workload("c1", 9, 3),
    workload("p3", 10, 1),
]
RECORDS = [record(item["uuid"]) for item in WORKLOADS]
SHAPES = figure_data.histogram(DEFINITION, WORKLOADS, RECORDS)


def test_workloads_are_counted_by_exact_combination_and_class():
    found = [(item.sizes, *(item.counts[name] for name in CLASSES)) for item in SHAPES.combinations]
    assert found == [((9, 3), 0, 1, 0), ((9, 20), 1, 0, 0), ((10, 1), 2, 0, 1)]
    assert SHAPES.counts == {"published": 3, "contest": 1, "seeded": 1}
    assert SHAPES.fixed == {"K": 4096} and SHAPES.axes == ["M", "N"]
    last = SHAPES.combinations[2]
    assert (last.present, last.total) == ({"published": 2, "seeded": 1}, 3)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("pcs"), st.integers(1, 3), st.integers(1, 3))))
def test_no_workload_is_lost_or_counted_twice(drawn):
    uuids = [f"{letter}{number}" for number, (letter, _, _) in enumerate(drawn)]
    workloads = [workload(uuid, m, n) for uuid, (_, m, n) in zip(uuids, drawn)]
    shapes = figure_data.histogram(DEFINITION, workloads, [record(uuid) for uuid in uuids])
    letters = [letter for letter, _, _ in drawn]
    assert shapes.counts == {name: letters.count(letter) for letter, name in CLASS_OF.items()}
    sizes = [item.sizes for item in shapes.combinations]
    assert sizes == sorted({(m, n) for _, m, n in drawn})


def test_labels_are_columns_under_the_names_of_the_axes():
    assert figure_data.shape_table(SHAPES) == (" M   N", [" 9   3", " 9  20", "10   1"])
    assert figure_data.summary(SHAPES) == "5 workloads in 3 exact combinations of the variable axes: M, N"


def test_a_definition_without_workloads_keeps_its_axes_and_zero_counts():
    empty = figure_data.histogram(DEFINITION, [], [])
    assert empty.counts == {"published": 0, "contest": 0, "seeded": 0} and empty.combinations == []
    assert figure_data.summary(empty) == "variable axes: M, N"


def test_a_definition_without_variable_axes_has_one_combination():
    fixed = DEFINITION | {"axes": {"K": {"type": "const", "value": 8}}}
    shapes = figure_data.histogram(fixed, [{"uuid": "s1", "axes": {}}], [record("s1")])
    assert figure_data.shape_table(shapes) == ("", [""])
    assert figure_data.summary(shapes) == "1 workload in 1 exact combination of the variable axes: none"


def test_a_workload_without_record_is_refused():
    with pytest.raises(SchemaError, match="c1: expected a record"):
        figure_data.histogram(DEFINITION, WORKLOADS, [item for item in RECORDS if item["workload"] != "c1"])


def test_errors_leave_out_what_was_not_compared_and_say_so():
    records = [record("s1", 0.9), record("s2", 0.1), record("c1"), record("p1", None)]
    rows = figure_data.error_rows(DEFINITION, records)
    assert rows[0].used == {"published": [], "contest": [], "seeded": [0.1, 0.9]}
    assert figure_data.left_out(rows[:1]) == "1 without engine outputs, 1 not measured"
    assert (rows[1].output, rows[1].used["seeded"]) == ("ids", [0.0, 0.0])
    assert [row.note for row in rows] == ["", ""]
    assert figure_data.error_rows(DEFINITION, [record("c1")])[0].note == "1 without engine outputs"
    assert [row.note for row in figure_data.error_rows(DEFINITION, [])] == ["no workloads", "no workloads"]


def test_ranges_are_taken_over_the_workloads_of_one_class():
    rows = figure_data.range_rows(
        DEFINITION,
        [
            record("s1", x=numbers(-2.0, 1.0, 0.5), o=numbers(0, 9, 0)),
            record("s2", x=numbers(-1.0, 3.0, 0.0, 2)),
            record("p1", x=numbers(-70.0, 0.5, 0.25), y=numbers(None, None, 0.0, 4)),
        ],
    )
    assert rows == [
        figure_data.RangeRow("x", "bfloat16", "published", -70.0, 0.5, [0.25], 0),
        figure_data.RangeRow("x", "bfloat16", "seeded", -2.0, 3.0, [0.0, 0.5], 2),
        figure_data.RangeRow("y", "int32", "published", None, None, [0.0], 4),
    ]
    item = figure_data.DefinitionFigures(SHAPES, [], [])
    assert [(entry.row, entry.empty) for entry in range_entries([item])] == [(None, True)]


@settings(deadline=None)
@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_the_range_axis_keeps_order_and_sign(first, second):
    low, high = sorted((first, second))
    assert figure_data.signed_log(low) <= figure_data.signed_log(high)
    assert figure_data.signed_log(-low) == -figure_data.signed_log(low)


def test_the_range_axis_counts_decades():
    near = figure_data.NEAR_ZERO
    assert [figure_data.signed_log(value) for value in (0, near, -10 * near)] == [0, 1, -2]
    assert [figure_data.decades(values) for values in ([], [0.0], [-1.0, 1412.0])] == [1, 1, 7]
    assert [number_text(value) for value in (None, 12345, -0.0529785)] == ["-", "12,345", "-0.05298"]
    assert range_marks(3) == {0: "0", 3: "1", -3: "-1", 1: "0.01", -1: "-0.01"}


def test_every_definition_of_the_repository_is_shown_without_torch(repository):
    code = (
        "import sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from inference_kernels.pages.figures import data\n"
        "every = data.read_figures(Path(sys.argv[2]))\n"
        "print(len(every), sum(data.class_totals(every).values()))"
    )
    done = subprocess.run([sys.executable, "-c", code, SCRIPTS, repository], capture_output=True, text=True)
    records = (repository / "captures.jsonl").read_text().count("\n")
    definitions = len(list((repository / "definitions").glob("*/*.json")))
    assert done.stdout.split() == [str(definitions), str(records)], done.stderr


def test_without_matplotlib_the_script_names_the_extra():
    """`-S` leaves site-packages out."""
    require_one_line(
        process(SCRIPT, before=("-S", "-E")),
        "the Python package matplotlib",
        "requirements/plot.txt",
        "the extra `plot`",
    )


def test_a_check_with_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    canvas.require_matplotlib(exact=False)
    with pytest.raises(EnvironmentMissing, match=f"matplotlib {canvas.MATPLOTLIB},.*found 1.0"):
        canvas.require_matplotlib(exact=True)


def test_the_pinned_version_is_the_one_of_the_requirements(repository):
    requirements = (repository / "requirements" / "plot.txt").read_text()
    assert re.search(r"^matplotlib==(\S+)", requirements, re.MULTILINE)[1] == canvas.MATPLOTLIB


# The tests below need Matplotlib.


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")


@pytest.fixture
def pinned(matplotlib):
    if matplotlib.__version__ != canvas.MATPLOTLIB:
        pytest.skip(f"figures are compared with Matplotlib {canvas.MATPLOTLIB} only")


@pytest.fixture
def root(tmp_path) -> Path:
    """A dataset of one definition, with no workloads and no captures.jsonl."""
    folder = tmp_path / "dataset" / "definitions" / "toy"
    folder.mkdir(parents=True)
    (folder / "toy.json").write_text(json.dumps(DEFINITION))
    return tmp_path / "dataset"


def test_figures_of_the_repository_are_in_step(pinned, repository):
    differences = write.figure_differences(repository, repository / "docs" / "figures")
    assert [error.line() for error in differences] == []


def test_the_bytes_do_not_depend_on_local_settings(matplotlib):
    first = write.shapes_figure(SHAPES)
    with matplotlib.rc_context(
        {
            "svg.hashsalt": "other",
            "svg.fonttype": "none",
            "path.sketch": (3, 20, 2),
            "font.family": "monospace",
            "savefig.dpi": 300,
            "savefig.transparent": True,
        }
    ):
        assert write.shapes_figure(SHAPES) == first
    assert b"<dc:date>" not in first and b'width="630pt"' in first


def test_written_figures_pass_the_check_until_one_changes(pinned, root):
    output = root / "docs" / "figures"
    result = command(SCRIPT, "--root", root)
    assert result.code == 0 and len(result.out.splitlines()) == 3
    assert command(SCRIPT, "--root", root, "--check").code == 0 and command(SCRIPT, "--root", root).out == ""
    (output / "errors.svg").write_bytes(b"old")
    (output / "shapes" / "gone.svg").write_bytes(b"stale")
    result = command(SCRIPT, "--root", root, "--check")
    assert result.code == 1 and len(result.err.splitlines()) == 2 and "errors.svg" in result.err
    command(SCRIPT, "--root", root)
    assert not (output / "shapes" / "gone.svg").exists()
    assert command(SCRIPT, "--root", root, "--check").code == 0


def test_one_definition_elsewhere(matplotlib, root, tmp_path):
    result = command(SCRIPT, "--root", root, "--definition", "toy", "--output", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*.svg")] == ["toy.svg"] and result.code == 0
    require_one_line(command(SCRIPT, "--root", root, "--definition", "nothing"), "expected one of: toy")


def test_all_classes_and_an_empty_range_are_drawn(matplotlib):
    records = [record("p1", 1.5, x=numbers(None, None, 0.0, 4), y=numbers(0, 1e9, 1.0))]
    item = figure_data.DefinitionFigures(
        SHAPES, figure_data.error_rows(DEFINITION, records), figure_data.range_rows(DEFINITION, records)
    )
    for content in (write.shapes_figure(SHAPES), write.errors_figure([item]), write.ranges_figure([item])):
        colours = set(re.findall(r"fill: (#[0-9a-f]{6})", content.decode()))
        assert set(canvas.CLASS_COLOURS.values()) <= colours


def measured(definition: str, solution: str, data: str, us: float, passed: int = 2, operations: float = 8.0) -> dict:
    case = {"us": us, "floor_us": 1.0, "bytes": 4, "operations": operations}
    return {
        "definition": definition,
        "solution": solution,
        "data": data,
        "passed": passed,
        "workloads": 2,
        "geomean_us": us,
        "floor_ratio": us,
        "device": "gpu",
        "cases": [case],
        "peaks": {"bytes_per_second": 4e12, "bf16_flops": 8e14, "fp8_flops": 1.6e15},
    }


ROOFLINE = [
    measured("a", "slow", "large", 9.0),
    measured("a", "fast", "large", 4.0),
    measured("a", "small", "starter", 1.5),
    measured("a", "broken", "large", 1.0, passed=1),
    measured("b", "only", "starter", 2.0, operations=0.0),
]


def test_the_roofline_shows_the_fastest_solution_that_passes_all_of_the_larger_data():
    first, second = roofline_entries(ROOFLINE)
    assert (first.definition, first.solution, first.share, first.points) == ("b", "only", 0.5, [])
    assert (second.definition, second.solution, second.data, second.share) == ("a", "fast", "large", 0.25)
    (point,) = second.points
    assert (point.intensity, point.rate, point.share) == (2.0, 2e6, 0.25)


def test_the_roofline_is_drawn_the_same_twice(matplotlib):
    assert roofline_figure(ROOFLINE) == roofline_figure(ROOFLINE)
