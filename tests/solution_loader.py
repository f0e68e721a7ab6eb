"""Import the main.py of a solution of this repository as a module of its own."""

import importlib.util
import itertools
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

REPOSITORY = Path(__file__).resolve().parents[1]
_COUNT = itertools.count()


def load_solution(name: str) -> ModuleType:
    """The module of solutions/*/<name>/main.py, freshly executed under a name that no other call gets.

    Without a CUDA device its Triton kernels run in the interpreter, which `triton.jit` decides while the
    module is executed. LookupError if there is not exactly one such file.
    """
    found = sorted((REPOSITORY / "solutions").glob(f"*/{name}/main.py"))
    if len(found) != 1:
        raise LookupError(f"expected one solutions/*/{name}/main.py, found {len(found)}")
    interpreted = not torch.cuda.is_available()
    if interpreted:
        os.environ["TRITON_INTERPRET"] = "1"
    spec = importlib.util.spec_from_file_location(f"solution_{next(_COUNT)}_{name}", found[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if interpreted and "triton" in sys.modules:
        _accept_loop_bounds()
    return module


@cache
def _accept_loop_bounds() -> None:
    """Let interpreted kernels loop to a bound known only at run time.

    Triton's interpreter before 3.8 hands range() its scalars as one-element arrays, which numpy >= 2.4
    refuses to convert; 3.8 squeezes them, as here.
    """
    from triton.runtime import interpreter
    original = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched
