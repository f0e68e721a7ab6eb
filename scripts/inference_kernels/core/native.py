"""The native FlashInfer-Trace schema, from flashinfer-bench: one guarded import, one validation call."""

import atexit
import importlib
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from inference_kernels.core.definitions import require_dataset
from inference_kernels.core.errors import EnvironmentMissing, SchemaError
from inference_kernels.core.schema import SCHEMAS

KINDS = {"definition": "Definition", "solution": "Solution", "trace": "Trace"}
INSTALL = "run `make install`, or: pip install --no-deps flashinfer-bench==0.1.2"


@cache
def native_data() -> ModuleType:
    """`flashinfer_bench.data`; EnvironmentMissing with the install command if it cannot be imported.

    Its cache goes to a folder that lives as long as the process (an unwritable home shows up there as a
    misleading worker error), and its switches that change behaviour at run time are cleared.
    """
    if "FIB_CACHE_PATH" not in os.environ:
        os.environ["FIB_CACHE_PATH"] = tempfile.mkdtemp(prefix="flashinfer-bench-")
        atexit.register(shutil.rmtree, os.environ["FIB_CACHE_PATH"], ignore_errors=True)
    for switch in ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING"):
        os.environ.pop(switch, None)
    try:
        return importlib.import_module("flashinfer_bench.data")
    except ImportError as error:
        raise EnvironmentMissing(
            expected="flashinfer-bench with its schema", found=str(error), where="flashinfer_bench.data", remedy=INSTALL
        ) from error


def check_native(kind: str, value: dict[str, Any], where: str) -> None:
    """Validate a definition, solution or trace against the native model; SchemaError with the first reason."""
    from pydantic import ValidationError

    try:
        getattr(native_data(), KINDS[kind]).model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or kind
        raise SchemaError(
            expected=f"a {kind} of the native schema",
            found=f"{place}: {first['msg']}",
            where=where,
            remedy="correct the field",
        ) from error


def exported_schemas() -> dict[Path, str]:
    """The JSON Schema of every native model, by the file of `schemas/` that holds it (`schema.native_errors`)."""
    models = {kind: getattr(native_data(), model).model_json_schema() for kind, model in KINDS.items()}
    return {
        SCHEMAS / f"native_{kind}.schema.json": json.dumps(_bare(schema), indent=1) + "\n"
        for kind, schema in models.items()
    }


def _bare(schema: Any) -> Any:
    """A schema without its prose; a property that is called `title` or `description` is no prose."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value)
        for key, value in schema.items()
        if not (key in ("title", "description") and isinstance(value, str))
    }


def load_trace_set(root: Path) -> Any:
    """The tree as the native loader sees it. It would create a missing root, so that is refused first."""
    require_dataset(root)
    try:
        return native_data().TraceSet.from_path(str(root))
    except (ValueError, AssertionError, OSError) as error:
        raise SchemaError(
            expected="a tree that the native loader takes",
            found=str(error).splitlines()[0],
            where=str(root),
            remedy="see the other findings",
        ) from error
