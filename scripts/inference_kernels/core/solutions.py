"""Find and read solutions, and check what needs no import of their code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_kernels.core.errors import NotFound, SchemaError, as_errors
from inference_kernels.core.files import read_json
from inference_kernels.core.schema import native_errors, parameter_count, unknown_keys
from inference_kernels.core.types import Definition

FLAG = "destination_passing_style"
PYTHON_LANGUAGES = ("python", "triton", "tilelang")


def solution_errors(
    solution: dict[str, Any], path: Path, definitions: Mapping[str, Definition], where: str
) -> list[SchemaError]:
    """List all that is wrong with one solution; its definition must be among `definitions`."""
    errors = unknown_keys("solution", solution, where) + native_errors("solution", solution, where)
    if errors:
        return errors
    definition = definitions.get(solution["definition"])
    if definition is None:
        return [
            SchemaError(
                expected="the solution of a known definition",
                found=solution["definition"],
                where=where,
                remedy="correct `definition`",
            )
        ]
    if (path.parent.name, path.stem) != (definition["op_type"], solution["name"]):
        errors.append(
            SchemaError(
                expected=f"the file {definition['op_type']}/{solution['name']}.json",
                found=f"{path.parent.name}/{path.name}",
                where=where,
                remedy="move the file",
            )
        )
    return errors + interface_errors(solution, definition, where)


def interface_errors(solution: dict[str, Any], definition: Definition, where: str) -> list[SchemaError]:
    """Check how the entry point is called: the flag is written, and the parameters are those it asks for."""
    if FLAG not in solution["spec"]:
        faults = [(f"spec.{FLAG}", "none: its default is true", "always write it")]
    elif solution["spec"]["language"] in PYTHON_LANGUAGES:
        faults = _parameter_faults(solution, definition)
    else:
        faults = []
    return as_errors(faults, where)


def _parameter_faults(solution: dict[str, Any], definition: Definition) -> list[tuple[str, str, str]]:
    file, _, function = solution["spec"]["entry_point"].partition("::")
    sources = {item["path"]: item["content"] for item in solution["sources"]}
    if file not in sources:
        return [(f"the entry file {file} among the sources", ", ".join(sources), "correct `entry_point`")]
    style = solution["spec"][FLAG]
    wanted = len(definition["inputs"]) + (len(definition["outputs"]) if style else 0)
    count = parameter_count(sources[file], function)
    if count in (None, wanted):
        return []
    return [
        (
            f"{wanted} parameters of {function}, as {FLAG} {str(style).lower()} asks",
            str(count),
            "take the inputs (and outputs) in the definition's order, or correct the flag",
        )
    ]


def solution_files(root: Path) -> list[Path]:
    """List solutions/<op_type>/<name>.json in path order."""
    return sorted((root / "solutions").glob("*/*.json"))


def read_solution(path: Path) -> dict[str, Any]:
    """Read a native Solution JSON; NotFound without the file, SchemaError if it holds no object."""
    if not path.exists():
        raise NotFound(expected="a solution", found="nothing", where=str(path), remedy="check the path")
    solution = read_json(path)
    if not isinstance(solution, dict):
        raise SchemaError(
            expected="a JSON object", found=type(solution).__name__, where=str(path), remedy="pass a native Solution"
        )
    return solution


def find_solutions(root: Path, name: str | None, definition: str | None) -> list[dict[str, Any]]:
    """Read the solutions of a root, narrowed by solution and definition name; NotFound if none is left."""
    every = [read_solution(path) for path in solution_files(root)]
    chosen = [
        item for item in every if name in (None, item.get("name")) and definition in (None, item.get("definition"))
    ]
    if not chosen:
        known = ", ".join(sorted(str(item.get("name")) for item in every)) or "none"
        raise NotFound(
            expected=f"a solution{f' named {name}' if name else ''}{f' of {definition}' if definition else ''}",
            found=f"among: {known}",
            where=str(root / "solutions"),
            remedy="check the name",
        )
    return chosen
