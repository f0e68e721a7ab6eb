"""Candidates: how one is read, and which of its faults show without importing it."""

import hashlib
import importlib.metadata
import re
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import load_definition
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import canonical_json, read_text
from inference_kernels.core.native import check_native
from inference_kernels.core.schema import parameter_count, unknown_keys
from inference_kernels.core.solutions import FLAG, PYTHON_LANGUAGES, interface_errors, read_solution
from inference_kernels.core.types import Definition
from inference_kernels.judge.types import RawSolution
from inference_kernels.judge.verdicts import CannotJudge, Rejected

DEFAULT_ENTRY = "main.py::run"


def read_candidate(path: Path, root: Path, task: str | None) -> RawSolution:
    """Read a candidate from a Solution JSON, or a folder with `main.py` (then `task` names its definition).

    CannotJudge if it is neither, or not of `task`.
    """
    if not path.is_dir():
        solution = read_solution(path)
        if task and solution.get("definition") != task:
            raise CannotJudge(
                expected=f"a solution of {task}",
                found=str(solution.get("definition")),
                where=str(path),
                remedy="drop --task, or judge another file",
            )
        return solution
    if not (path / "main.py").is_file():
        raise CannotJudge(
            expected="main.py in the folder",
            found="none",
            where=str(path),
            remedy="name the entry file main.py, with a function run",
        )
    if not task:
        raise CannotJudge(
            expected="--task NAME for a folder",
            found="none",
            where=str(path),
            remedy="say which definition the folder solves",
        )
    return folder_solution(path, load_definition(root, task))


def folder_solution(folder: Path, definition: Definition) -> RawSolution:
    """Make a Solution of a folder; the parameter count of `run` tells whether it takes output buffers."""
    files = sorted(file for file in folder.rglob("*.py") if "__pycache__" not in file.parts)
    sources = [{"path": file.relative_to(folder).as_posix(), "content": read_text(file) or "#"} for file in files]
    count = parameter_count(read_text(folder / "main.py"), "run")
    language = (
        "triton" if any(re.search(r"^\s*import triton\b", item["content"], re.M) for item in sources) else "python"
    )
    spec = {
        "language": language,
        "target_hardware": ["cuda"],
        "entry_point": DEFAULT_ENTRY,
        "dependencies": [],
        FLAG: count is not None and count > len(definition["inputs"]),
    }
    return {
        "name": folder.resolve().name,
        "definition": definition["name"],
        "author": "candidate",
        "spec": spec,
        "sources": sources,
    }


def require_sound(solution: RawSolution, definition: Definition) -> None:
    """Reject (build_error) for schema, entry point, parameters, style flag or dependencies: no import is needed."""
    try:
        check_native("solution", solution, str(solution.get("name")))
        faults = unknown_keys("solution", solution, str(solution.get("name")))
    except SchemaError as error:
        faults = [error]
    faults = faults or interface_errors(solution, definition, solution["name"])
    if faults:
        raise Rejected("build_error", faults[0].line())
    spec = solution["spec"]
    if spec["language"] in PYTHON_LANGUAGES:
        _require_dependencies(spec.get("dependencies", []))


def _require_dependencies(dependencies: list[str]) -> None:
    for text in dependencies:
        name = re.match(r"[A-Za-z0-9._-]+", text)
        try:
            importlib.metadata.version(name[0] if name else text)
        except importlib.metadata.PackageNotFoundError:
            raise Rejected("build_error", f"dependency {text} is not installed") from None


def text_hash(value: Any) -> str:
    """Hash a JSON value: SHA-256 of its canonical text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
