"""Rules of style that a test can check: sizes, cheap imports, no output, no blind catching."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_torch


REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = REPOSITORY / "scripts" / "inference_kernels"
FOLDERS = ("scripts", "tests", "definitions", "retired", "benchmarks", "solutions")
SOURCES = sorted(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
FILE_LIMIT, FUNCTION_LIMIT = 350, 60
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(params=SOURCES, ids=name)
def source(request) -> Path:
    return request.param


def walk(path: Path, *kinds: type) -> list:
    return [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]


def test_files_and_functions_stay_small(source):
    assert len(source.read_text().splitlines()) <= FILE_LIMIT
    for function in walk(source, *FUNCTIONS):
        assert function.end_lineno - function.lineno < FUNCTION_LIMIT, function.name


def test_errors_are_neither_swallowed_nor_caught_blindly(source):
    for handler in walk(source, ast.ExceptHandler):
        assert handler.type is not None, f"bare except in line {handler.lineno}"
        assert not isinstance(handler.body[0], ast.Pass), f"an error is swallowed in line {handler.lineno}"


def test_no_leftovers_of_writing(source):
    if source == Path(__file__).resolve():
        return
    text = source.read_text()
    for word in ("TODO", "FIXME", "XXX", "breakpoint("):
        assert word not in text, word


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=name)
def test_the_library_prints_nothing(path):
    if path.name == "cli.py":
        return
    calls = [node for node in walk(path, ast.Call) if isinstance(node.func, ast.Name)]
    assert not {"eval", "input", "breakpoint"} & {node.func.id for node in calls}
    to_stdout = [
        node.lineno
        for node in calls
        if node.func.id == "print" and not any(keyword.arg == "file" for keyword in node.keywords)
    ]
    assert not to_stdout, f"print in lines {to_stdout}"


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=name)
def test_library_modules_have_a_docstring(path):
    assert ast.get_docstring(tree(path))


def test_a_class_name_means_one_thing():
    defined = [
        node.name for path in (REPOSITORY / "scripts").rglob("*.py") for node in tree(path).body if is_class(node)
    ]
    assert {name for name in defined if defined.count(name) > 1} == set()


def is_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and not node.name.startswith("_")


@pytest.mark.parametrize("path", sorted([*(REPOSITORY / "scripts").glob("*.py"), *LIBRARY.rglob("*.py")]), ids=name)
def test_top_level_imports_are_the_standard_library_and_ours(path):
    """Heavy packages are imported inside the functions that need them, or for type checkers only."""
    for node in tree(path).body:
        for imported in modules(node):
            top = imported.split(".")[0]
            assert top in sys.stdlib_module_names or top in ("", "inference_kernels"), imported


def modules(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if not isinstance(node, ast.ImportFrom) else ["" if node.level else node.module]
