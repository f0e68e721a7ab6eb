"""Import the main.py of a solution of this repository as a module of its own."""

import importlib.util
import itertools
import os
from pathlib import Path
from types import ModuleType

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
INTERPRETED = not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
_COUNT = itertools.count()


def load_solution(name: str) -> ModuleType:
    """The module of solutions/*/<name>/main.py, freshly executed under a name that no other call gets.

    Without a CUDA device its Triton kernels run in the interpreter: TRITON_INTERPRET is set, and stays so.
    LookupError if there is not exactly one such file.
    """
    found = sorted((REPOSITORY / "solutions").glob(f"*/{name}/main.py"))
    if len(found) != 1:
        raise LookupError(f"expected one solutions/*/{name}/main.py, found {len(found)}")
    if INTERPRETED:
        os.environ["TRITON_INTERPRET"] = "1"
    spec = importlib.util.spec_from_file_location(f"solution_{next(_COUNT)}_{name}", found[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_triton() -> None:
    """Import Triton with the interpreter on, which decides for its own functions (cdiv, sum, ...) for good.

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
