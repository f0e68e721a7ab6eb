"""Solutions: where they lie, how a candidate is read, what can be said against one without importing it."""

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
from inference_kernels.judge.verdicts import CannotJudge, Rejected

DEFAULT_ENTRY = "main.py::run"


def read_candidate(path: Path, root: Path, task: str | None) -> dict[str, Any]:
    """A candidate from a Solution JSON, or a folder with `main.py` (then `task` names its definition)."""
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


def folder_solution(folder: Path, definition: dict) -> dict[str, Any]:
    """A Solution object from a folder.

    Whether it takes output buffers is read off the parameter count of `run`.
    """
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


def require_sound(solution: dict[str, Any], definition: dict) -> None:
    """Rejected (build_error) for what needs no import.

    Schema, flag, entry point, parameters, dependencies.
    """
    try:
        check_native("solution", solution, str(solution.get("name")))
        errors = unknown_keys("solution", solution, str(solution.get("name")))
    except SchemaError as error:
        errors = [error]
    if errors:
        raise Rejected("build_error", errors[0].line())
    spec = solution["spec"]
    for error in interface_errors(solution, definition, solution["name"]):
        raise Rejected("build_error", error.line())
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
    import hashlib

    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
