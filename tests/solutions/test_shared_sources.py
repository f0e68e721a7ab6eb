"""Check that no source in solutions/ repeats: one kind has one shared source, each solution its constants."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from inference_kernels.core.pack import CONSTANTS_IMPORT
from inference_kernels.core.solutions import solution_files

pytestmark = pytest.mark.no_torch
SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
SHARED = sorted(SOLUTIONS.glob("*/shared/*.py"))


def functions(path: Path) -> str:
    """Dump the code of a source without the module's docstring and constants."""
    body = ast.parse(path.read_text()).body
    return "\n".join(ast.dump(node) for node in body if not isinstance(node, (ast.Expr, ast.Assign)))


def test_no_two_sources_differ_in_constants_alone():
    sources = sorted(SOLUTIONS.glob("*/*/main.py")) + SHARED
    counts = Counter(functions(path) for path in sources)
    assert [path for path in sources if counts[functions(path)] > 1] == []


@pytest.mark.parametrize("shared", SHARED, ids=lambda path: path.stem)
def test_a_shared_source_serves_several_solutions_and_names_what_differs(shared):
    users = [
        path
        for path in solution_files(SOLUTIONS.parent)
        if path.parent == shared.parents[1] and path.stem.startswith(f"{shared.stem}_")
    ]
    assert len(users) > 1 and not any((path.with_suffix("") / "main.py").exists() for path in users)
    constants = {(path.with_suffix("") / "constants.py").exists() for path in users}
    assert constants == {bool(CONSTANTS_IMPORT.search(shared.read_text()))}
