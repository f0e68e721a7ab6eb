"""The solutions part of a check: place, native schema, entry point and flags. No solution is imported or run."""

from typing import TYPE_CHECKING

from inference_kernels.core.errors import DatasetError
from inference_kernels.core.files import read_object
from inference_kernels.core.solutions import solution_errors

if TYPE_CHECKING:
    from inference_kernels.check.state import Checked


def check(state: "Checked") -> None:
    """Check every `.json` below solutions/; findings go into `state`."""
    names: dict[str, str] = {}
    for path in sorted((state.root / "solutions").rglob("*.json")):
        where = state.relative(path)
        try:
            solution = read_object(path)
        except DatasetError as unreadable:
            state.findings.add_error(unreadable)
            continue
        for error in solution_errors(solution, path, state.definitions, where):
            state.findings.add_error(error)
        first = names.setdefault(str(solution.get("name")), where)
        if first != where:
            state.findings.error(where, "a solution name that occurs once", f"that of {first}", "rename it")
