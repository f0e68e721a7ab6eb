"""Definitions: where they lie, how they are read, how axes follow from shapes, how a reference is run."""

import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast, overload

from inference_kernels.core.errors import ReplayError, SchemaError
from inference_kernels.core.files import read_object
from inference_kernels.core.types import Definition, ScalarSpec, TensorSpec


def require_dataset(root: Path) -> None:
    """Raise SchemaError unless `root` has definitions/."""
    if not (root / "definitions").is_dir():
        raise SchemaError(
            expected="a dataset root with definitions/",
            found="none",
            where=str(root),
            remedy="pass the root of the dataset",
        )


def definition_files(root: Path, folder: str = "definitions") -> list[Path]:
    """List every `<folder>/<op_type>/<name>.json` below `root`, sorted by path."""
    return sorted((root / folder).glob("*/*.json"))


def read_definition(path: Path) -> Definition:
    """Read a definition; SchemaError if the file is no JSON object. Its schema is not checked here."""
    return cast(Definition, read_object(path))


def load_definition(root: Path, name: str) -> Definition:
    """Read the definition called `name`; SchemaError lists the known names if there is none."""
    matches = [path for path in definition_files(root) if path.stem == name]
    if not matches:
        known = ", ".join(path.stem for path in definition_files(root)) or "none"
        raise SchemaError(
            expected=f"one of: {known}",
            found=name,
            where=str(root / "definitions"),
            remedy="check the definition's name",
        )
    return read_definition(matches[0])


def const_axes(definition: Definition) -> dict[str, int]:
    """Map each constant axis to its size."""
    return {name: axis["value"] for name, axis in definition["axes"].items() if axis["type"] == "const"}


def var_axes(definition: Definition) -> list[str]:
    """Name the axes whose sizes each workload gives."""
    return [name for name, axis in definition["axes"].items() if axis["type"] == "var"]


@overload
def resolve_shape(spec: TensorSpec, axes: dict[str, int]) -> tuple[int, ...]: ...
@overload
def resolve_shape(spec: ScalarSpec, axes: dict[str, int]) -> None: ...
def resolve_shape(spec: TensorSpec | ScalarSpec, axes: dict[str, int]) -> tuple[int, ...] | None:
    """Resolve the shape of one input or output under concrete axes; None for a scalar."""
    if spec["shape"] is None:
        return None
    return tuple(axes[name] for name in spec["shape"])


def tensor_inputs(definition: Definition) -> Iterator[tuple[str, TensorSpec]]:
    """Iterate over the inputs that are tensors, as (name, spec)."""
    return ((name, spec) for name, spec in definition["inputs"].items() if spec["shape"] is not None)


def infer_axes(definition: Definition, shapes: dict[str, tuple[int, ...]], where: str) -> dict[str, int]:
    """Infer the variable axes from the shapes of the tensor inputs; SchemaError if shapes disagree."""
    values = const_axes(definition)
    for name, spec in tensor_inputs(definition):
        shape = shapes[name]
        if len(shape) != len(spec["shape"]):
            raise SchemaError(
                expected=f"input {name} with axes {spec['shape']}",
                found=f"shape {list(shape)}",
                where=where,
                remedy="capture the input with the definition's axes",
            )
        for axis, size in zip(spec["shape"], shape):
            if values.setdefault(axis, size) != size:
                raise SchemaError(
                    expected=f"axis {axis} = {values[axis]}",
                    found=f"{size} in the shape of input {name}",
                    where=where,
                    remedy="the inputs do not belong together, or a constant axis is broken",
                )
    return {name: values[name] for name in var_axes(definition)}


def compile_reference(definition: Definition) -> Callable[..., Any]:
    """Execute the definition's packed reference in a module of its own and return its `run`.

    The source is registered with `linecache`, so that a traceback shows its lines.
    """
    filename = f"<reference of {definition['name']}>"
    source = definition["reference"]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = ModuleType(f"reference_{definition['name']}")
    exec(compile(source, filename, "exec"), module.__dict__)
    run: Callable[..., Any] = module.run
    return run


def call_reference(definition: Definition, inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the reference on `inputs` (by name) and return its outputs by name, in definition order.

    ReplayError if it raises, or if the number of results differs from the definition's outputs.
    """
    try:
        result = compile_reference(definition)(*(inputs[name] for name in definition["inputs"]))
    except (Exception, SystemExit) as error:  # a reference that leaves the process is no success
        raise ReplayError(
            expected="a reference that runs",
            found=f"{type(error).__name__}: {error}".splitlines()[0],
            where=f"reference of {definition['name']}",
            remedy="correct the reference",
        ) from error
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(values) != len(definition["outputs"]):
        raise ReplayError(
            expected=f"{len(definition['outputs'])} outputs",
            found=f"{len(values)} results",
            where=definition["name"],
            remedy="correct the reference's return statement",
        )
    return dict(zip(definition["outputs"], values))
