"""The native FlashInfer-Trace schema of flashinfer-bench: its only import, validation, export of its schemas."""

import atexit
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from inference_kernels.core.errors import EnvironmentMissing, SchemaError
from inference_kernels.core.schema import SCHEMAS

KINDS = {"definition": "Definition", "solution": "Solution", "trace": "Trace"}
INSTALL = "run `make install`, or: pip install --no-deps flashinfer-bench==0.1.2"


@cache
def native_data() -> ModuleType:
    """Import `flashinfer_bench.data`; EnvironmentMissing with the install command if that fails.

    Its cache goes to a folder that lives as long as the process, because an unwritable home ends in a misleading
    error of a worker. Its environment switches that change behaviour are cleared.
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


def check_native(kind: str, value: Mapping[str, Any], where: str) -> None:
    """Validate a definition, solution or trace against the native model; SchemaError for the first violation."""
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
    """Map each file of `schemas/` that holds a native model's JSON Schema to its text (see `schema.native_errors`)."""
    models = {kind: getattr(native_data(), model).model_json_schema() for kind, model in KINDS.items()}
    return {
        SCHEMAS / f"native_{kind}.schema.json": json.dumps(_bare(schema), indent=1) + "\n"
        for kind, schema in models.items()
    }


def _bare(schema: Any) -> Any:
    """Strip a schema of its prose, but not of properties called `title` or `description`."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value)
        for key, value in schema.items()
        if not (key in ("title", "description") and isinstance(value, str))
    }
