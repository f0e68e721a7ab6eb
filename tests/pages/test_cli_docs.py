"""docs/cli.md and docs/performance.md: in step with the programs and the figures; every argument has help."""

import json

import pytest

from helpers.commands import SCRIPTS
from inference_kernels.core.errors import PackError
from inference_kernels.pages import performance
from inference_kernels.pages.cli import PAGE, cli_page, parser_of, scripts, subcommands, undocumented

REPOSITORY = SCRIPTS.parent
PROGRAMS = [*scripts(REPOSITORY), *sorted((REPOSITORY / "benchmarks").glob("bench_*.py"))]
PROGRAM = '''"""Toy."""
import argparse
def parser():
    parser = argparse.ArgumentParser(description=__doc__)
    {}
    return parser
'''


@pytest.fixture
def program(tmp_path):
    """program(lines) -> a root with one command that adds these arguments."""

    def write(*lines):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "scripts" / "toy.py").write_text(PROGRAM.format("\n    ".join(lines)))
        return tmp_path

    return write


def test_the_page_is_in_step():
    assert (REPOSITORY / PAGE).read_text() == cli_page(REPOSITORY), "run: python scripts/build_docs.py"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_every_argument_has_help(path):
    parser = parser_of(path)
    assert undocumented(parser) == [] and parser.description
    assert all(child.format_help() for _, _, child in subcommands(parser)) and parser.format_help()


def test_arguments_are_shown_as_one_types_them(program):
    page = cli_page(
        program(
            'parser.add_argument("--size", type=int, required=True, help="rows | columns, %(type)s")',
            'parser.add_argument("--kind", choices=("a", "b"), help="of\\n   two")',
            'parser.add_argument("files", nargs="*", metavar="FILE", help="inputs")',
            'parser.add_argument("--fast", "-f", action="store_true", help="hurry")',
        )
    )
    for row in (
        "| `--size SIZE` | rows \\| columns, int; required |",
        "| `--kind {a,b}` | of two |",
        "| `[FILE ...]` | inputs |",
        "| `--fast, -f` | hurry |",
    ):
        assert row in page, page


@pytest.mark.parametrize(
    "line, named",
    [
        ('parser.add_argument("--mute")', "--mute"),
        ('parser.add_argument("--mute", help=" ")', "--mute"),
        ('parser.add_subparsers().add_parser("child", help="c").add_argument("--deep")', "child --deep"),
    ],
)
def test_what_is_undocumented_is_refused(program, line, named):
    with pytest.raises(PackError, match=named):
        cli_page(program(line))


def test_a_command_without_parser_is_refused(program):
    (root := program("pass") / "scripts" / "toy.py").write_text("")
    with pytest.raises(PackError, match="toy.py: expected a function parser"):
        cli_page(root.parents[1])


def test_the_performance_page_is_in_step():
    page = (REPOSITORY / performance.PAGE).read_text()
    assert page == performance.performance_page(REPOSITORY), "run: python scripts/build_docs.py"


def test_the_performance_page_says_what_was_measured(tmp_path):
    figures = {"seconds": 2.5, "cpu_seconds": 4.0, "peak_mb": 90, "load_before": 0.1}
    tree = {"tree": "bytes", "workloads": 7, "paths": 1234, "disk_bytes": 10**9}
    trees = [
        tree | {"share": size, "bytes": size * 10**9, "tools": {"check": figures | {"cpu_seconds": 2.0 * size}}}
        for size in (1, 4)
    ]
    stopped = {
        "command": "import",
        "seconds": 1.5,
        "exit_codes": [130, -9, 0],
        "files": 3,
        "leftovers": 0,
        "identical": False,
    }
    machine = {"processor": "chip", "cores": 3, "memory_gb": 25, "system": "Linux", "python": "3.11.7"}
    path = tmp_path / performance.SUMMARY
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"machine": machine, "trees": trees, "resume": [stopped]}))
    page = performance.performance_page(tmp_path)
    for text in (
        "chip, 3 cores, 25 GB",
        "| check | 4.0 | 2.5 | 8.0 | 90 | 0.1 |",
        "| 7 | 1,234 | 4.0 GB | 1.0 GB |",
        "2.00 processor seconds per GB at 1 GB, 2.00 at 4 GB",
        "| `import` | 1.5 | 130 -9 0 | 3 | 0 | no |",
    ):
        assert text in page, page
    assert "sparse files" not in page
