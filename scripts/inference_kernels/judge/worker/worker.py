"""The worker: builds one solution and runs it on the inputs it is given. It holds no reference output.

Requests come one at a time over the channel, tensors as raw bytes through the shared-memory buffer. Inputs lie in
numbered sets, so that consecutive calls see other addresses and other values.
"""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from statistics import median
from typing import Any

from inference_kernels.judge.channel import ChannelClosed, receive, send
from inference_kernels.judge.rearrange import move_from_message
from inference_kernels.judge.verdicts import Rejected
from inference_kernels.judge.window import Piece, Window
from inference_kernels.judge.worker.device import fill_bytes, make_device
from inference_kernels.judge.worker.guard import Guard
from inference_kernels.judge.worker.outputs import check_memory, check_output, output_list


class Worker:
    """State of one worker process; `serve` answers requests until the channel closes."""

    def __init__(self, channel: socket.socket, window: int, device: str, threads: int):
        import torch

        self.torch, self.channel = torch, channel
        torch.set_num_threads(threads)
        self.device = make_device(device)
        self.window = Window(window, device)
        self.sets: dict[int, dict[str, Any]] = {}
        self.forms: dict[int, dict[str, tuple[Any, ...]]] = {}
        self.outputs: dict[int, dict[str, Any]] = {}
        self.launches: dict[int, tuple[Callable[[], Any], Any]] = {}
        self.handlers = {name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")}
        self.guard: Guard

    def serve(self) -> None:
        """Answer requests until the channel closes. The guard is a local name, which a solution cannot replace."""
        self.guard = guard = Guard((self, self.device, self.window))
        while True:
            try:
                message = receive(self.channel)
                nonce, do = message.pop("nonce"), message.pop("do")
                answer = check(guard) if do == "check" else self._answer(do, message)
                send(self.channel, answer | {"nonce": nonce})
            except ChannelClosed:
                return

    def _answer(self, do: str, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.handlers[do](**message) or {}
        except Rejected as error:
            return {"rejected": [error.status, error.detail]}
        except MemoryError as error:
            return {"rejected": ["out_of_memory", str(error) or "MemoryError"]}
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: raised by a solution, they are its own failure.
            return {"rejected": [_error_status(error), _describe(error)]}

    def do_describe(self) -> dict[str, Any]:
        import platform

        return self.device.describe() | {"python": platform.python_version(), "torch": self.torch.__version__}

    def do_calibrate(self, count: int) -> dict[str, Any]:
        """Measure what the harness itself costs: a call that does nothing, and what the timer adds to a launch."""
        launch, _ = self.device.capture(self._nothing(), 1)
        times = [self.device.time_replay(launch)[0] for _ in range(count)]
        return {"empty_ns": median(times), "overhead_ns": self.device.launch_overhead_ns()}

    def _nothing(self) -> Callable[[], Any]:
        tiny = self.torch.zeros(1, device=self.device.name)
        return tiny.zero_

    def do_build(self, definition: dict[str, Any], solution: dict[str, Any]) -> dict[str, Any]:
        """Build through the native registry; the guard's snapshot is older than the solution's first line."""
        from flashinfer_bench.compile import BuilderRegistry, BuildError
        from flashinfer_bench.data import Definition, Solution

        self.definition = definition
        self.native = Definition.model_validate(definition), Solution.model_validate(solution)
        registry = BuilderRegistry.get_instance()
        try:
            runnable = registry.build(*self.native)
        except BuildError as error:
            raise Rejected("build_error", str(error)) from error
        except BaseException as error:
            raise Rejected("build_error", _describe(error)) from error
        self.run, self.dps = runnable._callable, runnable.metadata.destination_passing_style
        module = sys.modules.get(runnable.metadata.misc.get("module_name", ""))
        self.prepare = getattr(module, "prepare", None)
        return {"dps": self.dps, "has_prepare": self.prepare is not None}

    def do_axes(self, outputs: dict[str, dict[str, Any]]) -> None:
        """Begin a workload: forget the tensors of the last one; `outputs`: name -> shape, dtype, bytes."""
        self.sets.clear()
        self.forms.clear()
        self.outputs.clear()
        self.launches.clear()
        self.specs = outputs
        self.device.synchronize()

    def do_inputs(
        self, number: int, tensors: dict[str, dict[str, Any]], shared: dict[str, int], scalars: dict[str, Any]
    ) -> None:
        """Make the inputs of a set: new tensors for `take` to fill, tensors shared with an earlier set, scalars."""
        values: dict[str, Any] = dict(scalars)
        for name, item in tensors.items():
            values[name] = self._empty(item)
        for name, other in shared.items():
            values[name] = self.sets[other][name]
        self.sets[number] = {name: values[name] for name in self.definition["inputs"]}
        self.forms[number] = {name: _form(values[name]) for name in (*tensors, *shared)}

    def _empty(self, form: dict[str, Any]) -> Any:
        return self.torch.empty(form["shape"], dtype=getattr(self.torch, form["dtype"]), device=self.device.name)

    def do_take(self, number: int, pieces: list[Piece]) -> None:
        """Fill inputs of a set from the shared-memory buffer."""
        self.window.take(pieces, self.sets[number])

    def do_prepare(self, number: int, warmup: int) -> dict[str, Any]:
        """Make the launch of a set: `prepare(...)` where the solution has one, otherwise `run` bound to the set."""
        arguments = self._arguments(number, self._fresh_outputs() if self.dps else {})
        if self.prepare is not None:
            launch = self.prepare(*arguments)
            if not callable(launch):
                raise Rejected("runtime_error", f"prepare returned {type(launch).__name__}, not a launch")
        else:
            run = self.run

            def launch() -> Any:
                return run(*arguments)

        held = dict(self.outputs.get(number, {})) if self.dps else None
        captured, result = self.device.capture(launch, warmup)
        self.launches[number] = captured, held
        if result is not None and not self.dps:
            self.launches[number] = captured, self._named(number, result)
        return {}

    def _fresh_outputs(self) -> dict[str, Any]:
        return {name: self._empty(spec) for name, spec in self.specs.items()}

    def _arguments(self, number: int, outputs: dict[str, Any]) -> list[Any]:
        if outputs:
            self.outputs[number] = outputs
        return [*self.sets[number].values(), *outputs.values()]

    def do_ready(
        self, number: int, mode: str, moves: list[dict[str, Any]], orders: list[Piece], poison: int, fresh: bool
    ) -> None:
        """Do what must happen before the timed part: new values, poisoned outputs.

        fresh: also poison the memory that the call will allocate (on the host this slows its allocations).
        """
        taken = {
            index: self._empty({"shape": [message["count"]], "dtype": "int64"}) for index, message in enumerate(moves)
        }
        self.window.take(orders, taken)
        for index, message in enumerate(moves):
            move_from_message(message, taken[index]).apply(
                {name: value for name, value in self.sets[number].items() if isinstance(value, self.torch.Tensor)}
            )
        self.mode, self.number = mode, number
        static = self.launches[number][1] if mode == "launch" else None
        if static is None:
            self.outputs.pop(number, None)
        if self.dps and mode == "call":
            static = self.outputs[number] = self._fresh_outputs()
        for tensor in (static or {}).values():
            fill_bytes(tensor, poison)
        if fresh or (self.device.name != "cpu" and mode == "call"):
            self.device.poison_free_memory(poison, [spec["bytes"] for spec in self.specs.values()])
        self.device.reset_persisting_l2()
        self.device.synchronize()

    def do_go(self, count: int) -> dict[str, Any]:
        """Time `count` calls or launches of the set made ready; keep the outputs of the last one."""
        number, times, tails, result = self.number, [], [], None
        if self.mode == "call":
            arguments = self._arguments(number, self.outputs[number] if self.dps else {})
            run = self.run
            for _ in range(count):
                result, elapsed, tail = self.device.time_call(lambda: run(*arguments))
                times.append(elapsed)
                tails.append(tail)
        else:
            replay, static = self.launches[number]
            kept = []
            timed = (lambda: kept.append(replay())) if static is None else replay
            for _ in range(count):
                elapsed, tail = self.device.time_replay(timed)
                times.append(elapsed)
                tails.append(tail)
            result = kept[-1] if kept else static
        self._require_quiet()
        self.device.poison_free_memory(0, [])
        self._keep(number, result)
        return {"ns": times, "tail_ns": tails}

    def do_burst(self, mode: str, number: int, count: int) -> None:
        """Make `count` launches or calls back to back, which only the judge's own clock times."""
        if mode == "launch":
            again = self.launches[number][0]
        else:
            run, arguments = self.run, self._arguments(number, self._fresh_outputs() if self.dps else {})

            def again() -> Any:
                return run(*arguments)

        for _ in range(count):
            again()
        self.device.synchronize()

    def _require_quiet(self) -> None:
        found = self.guard.leftovers()
        if found:
            raise Rejected("leftover", "; ".join(found))

    def _keep(self, number: int, result: Any) -> None:
        if self.dps:
            static = self.launches[number][1] if self.mode == "launch" else self.outputs[number]
            if self.mode == "call" and result is not None:
                raise Rejected("bad_output", "a destination-passing solution returned a value")
            self.outputs[number] = static
        else:
            self.outputs[number] = (
                result
                if isinstance(result, dict) and self.mode == "launch" and self.launches[number][1] is result
                else self._named(number, result)
            )

    def _named(self, number: int, result: Any) -> dict[str, Any]:
        values = dict(zip(self.specs, output_list(result, len(self.specs))))
        for name, value in values.items():
            check_output(name, value, self.specs[name], self.device.name)
        check_memory(values, self.sets[number])
        return values

    def do_give(self, number: int, what: str, pieces: list[Piece]) -> None:
        """Copy pieces of outputs or inputs of a set to the shared-memory buffer, if they still have their form."""
        source = self.outputs[number] if what == "outputs" else self.sets[number]
        for name in {piece[0] for piece in pieces}:
            if what == "outputs":
                check_output(name, source[name], self.specs[name], self.device.name)
            elif _form(source[name]) != self.forms[number][name]:
                raise Rejected("input_modified", f"{name} of input set {number} has another form or place after a call")
        self.window.put(pieces, source)

    def do_docstring(self) -> dict[str, Any]:
        module = sys.modules.get(self.run.__module__)
        return {"text": getattr(module, "__doc__", None) or ""}


def _form(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def check(guard: Guard) -> dict[str, Any]:
    """Reject, after the calls of a workload, replaced measuring machinery (tampered) and work under way (leftover).

    A solution that rewrites this very code can silence it; the judge's own checks (outputs, its clock) remain.
    """
    changed, left = guard.tampering(), guard.leftovers()
    if changed:
        return {"rejected": ["tampered", f"replaced {', '.join(changed[:5])}"]}
    return {"rejected": ["leftover", "; ".join(left)]} if left else {}


def _error_status(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    memory_words = ("OutOfMemory", "out of memory", "can't allocate memory", "not enough memory")
    return "out_of_memory" if any(word in text for word in memory_words) else "runtime_error"


def _describe(error: BaseException) -> str:
    """Describe an exception in one line, with the innermost line of the solution's own source."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "inference_kernels" not in frame.filename]
    place = f" at {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{place}"
