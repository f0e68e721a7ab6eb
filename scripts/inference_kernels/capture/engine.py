"""The engine as a capture sees it: its environment, its output, its failures, the machine."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inference_kernels.capture.recorder import RUN_VARIABLE
from inference_kernels.core.errors import CaptureError, EnvironmentMissing
from inference_kernels.core.layout import REPOSITORY

PLUGIN = "inference_kernels_capture"
PLUGIN_FOLDER = REPOSITORY / "scripts" / "sglang_plugin"
STUBS = PLUGIN_FOLDER / "cpu_stubs"
# Of `make engine`.
ENGINE_PYTHON = REPOSITORY / ".venv-engine" / "bin" / "python"
Report = Callable[[str], None]


def describe_hardware(device: str) -> dict[str, Any]:
    """Return a record's `hardware`; EnvironmentMissing if `device` is "cuda" and there is no GPU."""
    if device == "cpu":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return {"device": "cpu", "name": models[0] if models else "unknown", "cores": os.cpu_count()}
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentMissing(
            expected="a CUDA device",
            found="none",
            where="torch.cuda",
            remedy="use --device cpu, or a machine with a GPU",
        )
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": "cuda",
        "name": properties.name,
        "cuda": torch.version.cuda,
        "compute_capability": f"{properties.major}.{properties.minor}",
    }


def describe_seeded(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return a record's `model` for a seeded checkpoint. document: its recipe file."""
    return {
        "id": f"seeded/{name}",
        "revision": "seeded",
        "title": document["title"],
        "config_sha256": document["config_sha256"],
        "seed": document["seed"],
        "recipe": f"{document['generator']}: {document['rule']}",
    }


def recorded_environment(fixed: dict[str, str]) -> dict[str, str]:
    """Return the engine's variables as the records list them: `fixed`, the plugin's, and SGLANG_* set by the user."""
    always = {"SGLANG_PLUGINS": PLUGIN, "HF_HUB_OFFLINE": "1"}
    # Paths belong to the machine, not to the record.
    found = {
        name: value for name, value in os.environ.items() if name.startswith("SGLANG_") and not value.startswith("/")
    }
    return dict(sorted((found | always | fixed).items()))


def set_environment(variables: dict[str, str], run: Path, *folders: Path) -> None:
    """Set variables and import paths, for this process and, through inheritance, for the engine's workers."""
    os.environ.update(variables)
    os.environ[RUN_VARIABLE] = str(run.resolve())
    paths = [str(folder) for folder in (PLUGIN_FOLDER, REPOSITORY / "scripts", *folders)]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(paths + ([inherited] if inherited else []))


@contextmanager
def engine_failures(log: Path) -> Iterator[None]:
    """Turn any exception of the engine into a CaptureError that names its log."""
    try:
        yield
    except Exception as error:
        message = str(error).strip().splitlines()
        raise CaptureError(
            expected="an engine that starts and answers",
            where="SGLang",
            remedy=f"see {log}",
            found=f"{type(error).__name__}: {message[0] if message else ''}",
        ) from error


@contextmanager
def engine_output(path: Path) -> Iterator[Any]:
    """Send what this process and its children print to `path`; yield a stream to the real stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = [os.dup(descriptor) for descriptor in (1, 2)]
    with open(path, "ab") as log, os.fdopen(os.dup(2), "w") as console:
        sys.stdout.flush()
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        try:
            yield console
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, original in zip((1, 2), saved):
                os.dup2(original, descriptor)
                os.close(original)
