"""The solutions part of a check: place, native schema, and what a packer forgets. Nothing is imported or run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .definitions import read_definition
from .errors import DatasetError, SchemaError
from .schema import native_errors, parameter_count, unknown_keys

if TYPE_CHECKING:
    from .check import Checked

FLAG = "destination_passing_style"
PYTHON_LANGUAGES = ("python", "triton", "tilelang")


def check(state: "Checked") -> None:
    """Check every `.json` below solutions/; findings go into `state`."""
    names: dict[str, str] = {}
    for path in sorted((state.root / "solutions").rglob("*.json")):
        where = state.relative(path)
        try:
            solution = read_definition(path)
        except DatasetError as error:
            state.findings.add_error(error)
            continue
        for error in solution_errors(solution, path, state.definitions, where):
            state.findings.add_error(error)
        first = names.setdefault(str(solution.get("name")), where)
        if first != where:
            state.findings.add("error", where, "a solution name that occurs once", f"that of {first}", "rename it")


def solution_errors(
    solution: dict[str, Any], path: Path, definitions: dict[str, dict], where: str
) -> list[SchemaError]:
    """All that is wrong with one solution; its definition must be among `definitions`."""
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


def interface_errors(solution: dict[str, Any], definition: dict, where: str) -> list[SchemaError]:
    """How the entry point is called: the flag is written, and the parameters are those it asks for."""
    if FLAG not in solution["spec"]:
        faults = [(f"spec.{FLAG}", "none: its default is true", "always write it")]
    elif solution["spec"]["language"] in PYTHON_LANGUAGES:
        faults = _parameter_faults(solution, definition)
    else:
        faults = []
    return [
        SchemaError(expected=expected, found=found, where=where, remedy=remedy) for expected, found, remedy in faults
    ]


def _parameter_faults(solution: dict[str, Any], definition: dict) -> list[tuple[str, str, str]]:
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
