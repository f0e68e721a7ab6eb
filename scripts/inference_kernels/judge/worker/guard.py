"""What a solution must leave unchanged: the functions that measure it, and nothing at work after a call.

The snapshot is taken before the solution is imported. It compares identities, so a wrapper counts as a change.
"""

import builtins
import ctypes
import gc
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from _thread import _count as thread_count
from types import FunctionType, ModuleType
from typing import Any

TORCH_NAMES = (
    "Tensor",
    "empty",
    "empty_like",
    "empty_strided",
    "equal",
    "arange",
    "argsort",
    "where",
    "zeros",
    "full",
    "sum",
    "index_select",
    "frombuffer",
    "get_num_threads",
)
CUDA_NAMES = (
    "Event",
    "Stream",
    "CUDAGraph",
    "graph",
    "synchronize",
    "current_stream",
    "stream",
    "current_device",
    "is_current_stream_capturing",
    "empty_cache",
    "mem_get_info",
)
PLAIN_MODULES = (builtins, time, os, json, struct, ctypes, gc, signal, threading)
OWN_PACKAGE = "inference_kernels."


def guarded_objects() -> dict[str, dict[str, Any]]:
    """Collect everything whose replacement would be tampering: namespace -> name -> object."""
    import torch

    spaces = {module.__name__: _callables(vars(module)) for module in PLAIN_MODULES}
    spaces["socket.socket"] = _callables(vars(socket.socket))
    spaces["torch"] = {name: getattr(torch, name) for name in TORCH_NAMES}
    spaces["torch.Tensor"] = _callables(vars(torch.Tensor))
    spaces["torch.cuda"] = {name: getattr(torch.cuda, name) for name in CUDA_NAMES}
    spaces["torch.cuda.Event"] = _callables(vars(torch.cuda.Event))
    spaces["torch.cuda.CUDAGraph"] = _callables(vars(torch.cuda.CUDAGraph))
    for name, module in list(sys.modules.items()):
        if name.startswith((OWN_PACKAGE, "flashinfer_bench.compile")) and isinstance(module, ModuleType):
            spaces[name] = _own_namespace(module)
    return spaces


def _callables(space: Any) -> dict[str, Any]:
    return {name: value for name, value in dict(space).items() if callable(value)}


def _own_namespace(module: ModuleType) -> dict[str, Any]:
    """Collect every callable of one of our modules with its code object and methods: their bodies count too."""
    found = {}
    for name, value in _callables(vars(module)).items():
        found[name] = value
        if isinstance(value, FunctionType):
            found[f"{name}.__code__"] = value.__code__
        if isinstance(value, type) and value.__module__ == module.__name__:
            for key, item in _callables(vars(value)).items():
                found[f"{name}.{key}"] = item
                if isinstance(item, FunctionType):
                    found[f"{name}.{key}.__code__"] = item.__code__
    return found


class Guard:
    """Snapshot at construction; `tampering` and `leftovers` say what has changed since.

    watched: objects of the harness whose own attributes must not come to shadow their class's.
    """

    def __init__(self, watched: tuple[Any, ...] = ()) -> None:
        self.spaces = guarded_objects()
        self.watched = [(item, _callables(vars(item)), dict(getattr(item, "handlers", {}))) for item in watched]
        self.handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.threads, self.hooks = thread_count(), list(gc.callbacks)

    def tampering(self) -> list[str]:
        """Name what was replaced since the snapshot."""
        now = guarded_objects()
        changed = [
            f"{space}.{name}"
            for space, names in self.spaces.items()
            for name, value in names.items()
            if now.get(space, {}).get(name) is not value
        ]
        for item, attributes, handlers in self.watched:
            name = type(item).__name__
            changed += [f"{name}.{key}" for key in vars(type(item)) if key in vars(item) and key not in attributes]
            changed += [f"{name}.{key}" for key, value in attributes.items() if vars(item).get(key) is not value]
            if dict(getattr(item, "handlers", {})) != handlers:
                changed.append(f"{name}.handlers")
        if sys.gettrace() or sys.getprofile():
            changed.append("sys.settrace or sys.setprofile")
        return changed

    def leftovers(self) -> list[str]:
        """Describe Python threads, interval timers, signal handlers and collector hooks that a returned call left."""
        found = []
        if thread_count() > self.threads:
            names = ", ".join(thread.name for thread in threading.enumerate()[1:]) or "unknown to threading"
            found.append(f"{thread_count() - self.threads} threads ({names})")
        if any(signal.getitimer(kind)[0] for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
            found.append("a running interval timer")
        if any(signal.getsignal(number) is not handler for number, handler in self.handlers.items()):
            found.append("a signal handler")
        if gc.callbacks != self.hooks:
            found.append("a garbage collector hook")
        return found
