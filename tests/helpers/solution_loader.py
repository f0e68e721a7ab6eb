"""Import the packed main.py of a solution of this repository as a module of its own."""

import importlib.util
import itertools
import os
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from inference_kernels.core.pack import solution_sources

REPOSITORY = Path(__file__).resolve().parents[2]
INTERPRETED = not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
_COUNT = itertools.count()
_SCRATCH = tempfile.TemporaryDirectory(prefix="solutions-")


def solution_file(name: str) -> Path:
    """Write main.py of solutions/*/<name>, shared source and constants joined, to a file of its own.

    LookupError if there is not exactly one such solution.
    """
    found = sorted((REPOSITORY / "solutions").glob(f"*/{name}.json"))
    if len(found) != 1:
        raise LookupError(f"expected one solutions/*/{name}.json, found {len(found)}")
    path = Path(_SCRATCH.name) / name / "main.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text({item["path"]: item["content"] for item in solution_sources(found[0])}["main.py"])
    return path


def load_solution(name: str) -> ModuleType:
    """Execute main.py of a solution under a module name that no other call gets.

    Without a CUDA device its Triton kernels run in the interpreter: TRITON_INTERPRET is set, and stays so.
    """
    path = solution_file(name)
    if INTERPRETED:
        os.environ["TRITON_INTERPRET"] = "1"
    spec = importlib.util.spec_from_file_location(f"solution_{next(_COUNT)}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_triton() -> None:
    """Import Triton with the interpreter on: its own functions (cdiv, sum, ...) keep what they find at import.

    Also let interpreted kernels loop to a bound known only at run time: before 3.8 the interpreter hands
    range() its scalars as one-element arrays, which numpy >= 2.4 refuses; 3.8 squeezes them, as here.
    """
    before = os.environ.get("TRITON_INTERPRET", "0")
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    os.environ["TRITON_INTERPRET"] = before
    original = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched


if INTERPRETED:
    _import_triton()
