"""Validation of JSON documents: exported native schemas, our own schemas, and the rules that neither states."""

import ast
import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from inference_kernels.core.constraints import REMEDY, names_in, refusal
from inference_kernels.core.definitions import const_axes, tensor_inputs, var_axes
from inference_kernels.core.errors import SchemaError, as_errors
from inference_kernels.core.files import read_json
from inference_kernels.core.types import Definition, Workload

SCHEMAS = Path(__file__).parent / "schemas"

# Keys of the native objects, by path; `*` is any name. The native models drop unknown keys silently, so they would
# accept a misspelt one.
NATIVE_KEYS = {
    "definition": {
        "": "name op_type axes inputs outputs reference tags description constraints",
        "axes.*": "type value description",
        "inputs.*": "shape dtype description",
        "outputs.*": "shape dtype description",
    },
    "solution": {
        "": "name definition author spec sources description",
        "spec": "language target_hardware entry_point dependencies destination_passing_style binding",
        "sources.*": "path content",
    },
    "trace": {
        "": "definition workload solution evaluation",
        "workload": "axes inputs uuid",
        "workload.inputs.*": "type path tensor_key value",
    },
}


def unknown_keys(kind: str, value: Mapping[str, Any], where: str) -> list[SchemaError]:
    """Report each key of `value` that the native schema does not know, with the likely spelling."""
    errors = []
    for pattern, keys in NATIVE_KEYS[kind].items():
        for place, item in _matches(value, pattern.split(".") if pattern else []):
            for key in sorted(set(item) - set(keys.split())) if isinstance(item, dict) else ():
                near = difflib.get_close_matches(key, keys.split(), 1)
                errors.append(
                    SchemaError(
                        expected=f"one of: {', '.join(keys.split())}",
                        found=f"unknown key {place + key!r}",
                        where=where,
                        remedy=f"did you mean {near[0]!r}?" if near else "remove it",
                    )
                )
    return errors


def _matches(value: Any, parts: list[str], place: str = "") -> list[tuple[str, Any]]:
    if not parts:
        return [(place, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [
        match
        for name, item in items
        if parts[0] in ("*", name)
        for match in _matches(item, parts[1:], f"{place}{name}.")
    ]


@cache
def _validator(name: str) -> Any:
    import jsonschema

    schema = read_json(SCHEMAS / f"{name}.schema.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def schema_errors(name: str, value: Any, where: str) -> list[SchemaError]:
    """Report the violations of `schemas/<name>.schema.json`, each with the place inside the document."""
    return [
        SchemaError(
            expected=f"a {name.replace('_', ' ')} of schemas/{name}.schema.json",
            found=f"{error.json_path}: {error.message[:200]}",
            where=where,
            remedy="correct the field, or write the record again with its script",
        )
        for error in sorted(_validator(name).iter_errors(value), key=lambda error: error.json_path)
    ]


def native_errors(kind: str, value: Any, where: str) -> list[SchemaError]:
    """Report the violations of the native schema's exported copy, without loading flashinfer-bench or torch.

    kind: definition, solution or trace. For definitions the rules of the native model beyond its schema are included.
    """
    found = [_nearest(error) for error in _validator(f"native_{kind}").iter_errors(value)]
    faults = sorted(f"{'.'.join(map(str, error.absolute_path)) or kind}: {error.message[:200]}" for error in found)
    if kind == "definition" and not faults:
        faults = _definition_faults(value)
    return [
        SchemaError(expected=f"a {kind} of the native schema", found=fault, where=where, remedy="correct the field")
        for fault in faults
    ]


def _nearest(error: Any) -> Any:
    """Descend from an error over alternatives to the best match inside the one that the value's `type` names."""
    from jsonschema.exceptions import best_match

    meant = [item for item in error.context or () if item.validator != "const"] or error.context
    return best_match(meant) if meant else error


def _definition_faults(definition: Definition) -> list[str]:
    """Check the rules of the native model that its JSON Schema cannot state."""
    faults = []
    try:
        body = ast.parse(definition["reference"]).body
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in body):
            faults.append("reference: no top-level function run")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        faults.append(f"reference: not Python ({error})")
    for name in sorted(set(definition["inputs"]) & set(definition["outputs"])):
        faults.append(f"outputs.{name}: also the name of an input")
    specs = [(f"inputs.{name}", spec["shape"]) for name, spec in definition["inputs"].items()]
    specs += [(f"outputs.{name}", spec["shape"]) for name, spec in definition["outputs"].items()]
    for place, shape in specs:
        faults += [f"{place}.shape: unknown axis {axis}" for axis in shape or () if axis not in definition["axes"]]
    return faults


def definition_errors(definition: Definition, path: Path, where: str) -> list[SchemaError]:
    """Check a definition that passed the native schema: its place, descriptions, axes and constraints."""
    name, op_type = definition["name"], definition["op_type"]
    faults = []
    if (path.stem, path.parent.name) != (name, op_type):
        faults.append((f"the file {op_type}/{name}.json", f"{path.parent.name}/{path.name}", "move the file"))
    described: dict[str, Mapping[str, Any]] = {"definition": definition}
    for group in ("axes", "inputs", "outputs"):
        described |= {f"{group}.{key}": item for key, item in definition[group].items()}
    for place, item in described.items():
        if not (item.get("description") or "").strip():
            faults.append((f"a description of {place}", "none", "say what a user must know about it"))
    bound = {axis for _, spec in tensor_inputs(definition) for axis in spec["shape"]}
    for axis in sorted(set(var_axes(definition)) - bound):
        faults.append((f"variable axis {axis} in some input's shape", "only elsewhere", "add it to an input"))
    for axis, value in const_axes(definition).items():
        if type(value) is not int:
            faults.append((f"an integer size of axis {axis}", repr(value), "write a number"))
    known = set(definition["axes"]) | set(definition["inputs"])
    for rule in definition.get("constraints") or []:
        reason = refusal(rule)
        if reason:
            faults.append(("a constraint in the allowed language", f"{rule!r}: {reason}", REMEDY))
            continue
        for missing in sorted(names_in(rule) - known):
            faults.append((f"names of axes and inputs in {rule!r}", missing, "correct the constraint"))
    return as_errors(faults, where)


def workload_line_errors(row: dict[str, Any], definition: Definition, where: str) -> list[SchemaError]:
    """Check form and content of a workload line, for readers that do not use the native schema."""
    workload = row.get("workload")
    formed = (
        isinstance(workload, dict)
        and isinstance(workload.get("uuid"), str)
        and isinstance(workload.get("axes"), dict)
        and isinstance(workload.get("inputs"), dict)
        and all(isinstance(item, dict) for item in workload["inputs"].values())
    )
    if not formed or row.get("definition") != definition["name"]:
        return [
            SchemaError(
                expected=f"a workload of {definition['name']}: uuid, axes, inputs",
                found="something else",
                where=where,
                remedy="run check_workload_inputs.py for all findings",
            )
        ]
    return workload_errors(cast(Workload, workload), definition, where)


def workload_errors(workload: Workload, definition: Definition, where: str) -> list[SchemaError]:
    """Check that all inputs are mapped, as `safetensors` or `scalar`, and that all variable axes have sizes."""
    faults = []
    inputs, axes = workload["inputs"], workload["axes"]
    for missing in [name for name in definition["inputs"] if name not in inputs]:
        faults.append((f"an input {missing}", "none", "capture all inputs of the definition"))
    for name, item in inputs.items():
        if name not in definition["inputs"]:
            faults.append(("inputs of the definition only", f"input {name}", "remove it or correct its name"))
            continue
        scalar = definition["inputs"][name]["shape"] is None
        wanted = "scalar" if scalar else "safetensors"
        if item.get("type") != wanted:
            faults.append(
                (
                    f"input {name} of type {wanted}",
                    f"type {item.get('type')!r}",
                    "only captured values are published: import the workload again",
                )
            )
        elif not scalar and set(item) != {"type", "path", "tensor_key"}:
            faults.append((f"type, path and tensor_key of {name}", ", ".join(sorted(item)), "correct the keys"))
        elif scalar and not _scalar_fits(item.get("value"), definition["inputs"][name]["dtype"]):
            faults.append(
                (
                    f"a {definition['inputs'][name]['dtype']} value of {name}",
                    repr(item.get("value")),
                    "correct the value",
                )
            )
    expected = set(var_axes(definition))
    if set(axes) != expected:
        faults.append((f"axes {sorted(expected)}", f"{sorted(axes)}", "name exactly the variable axes"))
    for axis in sorted(expected & set(axes)):
        if type(axes[axis]) is not int or axes[axis] < 0:
            faults.append((f"an integer >= 0 for axis {axis}", repr(axes[axis]), "correct the axis"))
    return as_errors(faults, where)


def _scalar_fits(value: Any, dtype: str) -> bool:
    if dtype == "bool":
        return type(value) is bool
    return type(value) is int if re.fullmatch(r"int\d+", dtype) else type(value) in (int, float)


def parameter_count(source: str, function: str) -> int | None:
    """Count the positional parameters of a top-level function; None if it is absent or variadic."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function and not node.args.vararg:
            return len(node.args.posonlyargs) + len(node.args.args)
    return None
