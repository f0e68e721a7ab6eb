"""The judge at work: one fork server, one worker per solution, one record per solution and workload."""

import contextlib
import os
import platform
import socket
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from inference_kernels.core.records import read_captures
from inference_kernels.core.tasks import Task, read_task
from inference_kernels.core.types import Definition
from inference_kernels.core.workloads import Available, available_workloads, data_classes
from inference_kernels.judge.bench import Bench, Limits
from inference_kernels.judge.candidate import require_sound
from inference_kernels.judge.case import JudgedCase, LargeTensors, load_case
from inference_kernels.judge.floor import Floor, floor_of, peaks_of
from inference_kernels.judge.gpu import Gpu, driver_version, gpu_state, same_uuid
from inference_kernels.judge.process import ForkServer, WorkerProcess
from inference_kernels.judge.types import RawSolution
from inference_kernels.judge.verdicts import CannotJudge, Rejected

PACKAGES = ("torch", "triton", "flashinfer-bench", "flashinfer-python", "sglang", "tilelang", "natten")
CALIBRATION_CALLS = 20


@dataclass
class JudgeOptions:
    """How to judge. device: cpu or cuda; against: reference or capture; memory_gib: host memory of a worker."""

    root: Path
    device: str = "cpu"
    gpu: Gpu | None = None
    against: str = "reference"
    validation_only: bool = False
    memory_gib: float = 64.0
    threads: int = 1
    limits: Limits = field(default_factory=Limits)


class Judge:
    """A context manager: starts the fork server, describes the machine, ends everything on exit."""

    def __init__(self, options: JudgeOptions):
        self.options, self.root = options, options.root
        self.classes = data_classes(options.root)
        self.saved_outputs = _saved_outputs(options.root) if options.against == "capture" else {}
        self.server = ForkServer(options.device, options.gpu.uuid if options.gpu else None, options.threads)

    def __enter__(self) -> "Judge":
        try:
            self._look_around()
        except BaseException:
            self.server.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.__exit__(*exception)

    def _look_around(self) -> None:
        worker = self.spawn()
        try:
            seen = worker.ask("describe", self.options.limits.build)
            cost = worker.ask("calibrate", self.options.limits.build, count=CALIBRATION_CALLS)
        except Rejected as error:
            raise CannotJudge(
                expected="a worker that can use the device",
                found=str(error),
                where="judge",
                remedy="check the driver and torch's CUDA build",
            ) from error
        finally:
            worker.end()
        gpu = self.options.gpu
        if gpu and gpu.uuid == gpu.physical and not same_uuid(seen["uuid"], gpu.uuid):
            raise CannotJudge(
                expected=f"CUDA on {gpu.uuid}",
                found=seen["uuid"],
                where="CUDA_VISIBLE_DEVICES",
                remedy="unset CUDA_DEVICE_ORDER and run again",
            )
        self.overhead_ns = cost["overhead_ns"]
        self.environment = (
            seen
            | self._machine(gpu)
            | {"empty_call_us": cost["empty_ns"] / 1e3, "launch_overhead_us": self.overhead_ns / 1e3}
        )
        self.banks = LargeTensors()
        self.peaks = peaks_of(self.options.device, gpu.uuid if gpu else "", self.root / "results" / "peaks")
        self.environment["peaks"] = self.peaks

    def _machine(self, gpu: Gpu | None) -> dict[str, Any]:
        versions = {}
        for name in PACKAGES:
            with contextlib.suppress(PackageNotFoundError):
                versions[name] = version(name)
        found = {"host": socket.gethostname(), "system": platform.platform(), "packages": versions}
        return found | ({"gpu": gpu.uuid, "driver": driver_version(gpu)} if gpu else {"gpu": "cpu"})

    def spawn(self) -> WorkerProcess:
        return self.server.spawn(int(self.options.memory_gib * 2**30))

    def state(self) -> dict[str, Any]:
        """Note the load of the host in the last minute (a busy host scatters times), and the GPU's clocks and power."""
        gpu = gpu_state(self.options.gpu) if self.options.gpu else {}
        return {"host_load": round(os.getloadavg()[0], 2)} | gpu

    def workloads(self, definition: Definition, only: tuple[str, ...]) -> list[Available]:
        """List the workloads to judge, all if `only` is empty; CannotJudge if one of `only` is not in the dataset."""
        found = available_workloads(self.root, definition, self.classes, only)
        if absent := [uuid for uuid in only if uuid not in {item.uuid for item in found}]:
            raise CannotJudge(
                expected=f"the workloads of the dev list of {definition['name']}",
                found=f"{len(absent)} of {len(only)} not in the dataset: {', '.join(absent)}",
                where=f"tasks/{definition['name']}.json",
                remedy="import or pull them, or choose the dev subset again",
            )
        return found

    def task(self, name: str) -> Task:
        return read_task(self.root, name)

    def load(self, definition: Definition, item: Available, task: Task, seed: int) -> JudgedCase:
        case = load_case(self.root, definition, item, task, self.options.device, seed, self.options.against, self.banks)
        if self.options.device == "cuda":
            import torch

            torch.cuda.empty_cache()
        return case

    def floor(self, case: JudgedCase) -> Floor:
        return floor_of(
            case.definition,
            case.axes,
            case.tensors,
            case.output_bytes(),
            self.peaks,
            self.environment.get("l2_bytes", 0),
        )


def _saved_outputs(root: Path) -> dict[str, Any]:
    """Map each workload to the outputs of its first capture record that has some, as case.saved_outputs takes them."""
    found: dict[str, Any] = {}
    for record in read_captures(root):
        if record["outputs"]:
            found.setdefault(record["workload"], record["outputs"])
    return found


class Subject:
    """A solution and its worker. One that saw a failure must be retired: CUDA errors or its state may spoil it."""

    def __init__(self, judge: Judge, definition: Definition, solution: RawSolution):
        self.judge, self.definition, self.solution = judge, definition, solution
        self.style: dict[str, Any] = {}
        self._worker: WorkerProcess | None = None

    @property
    def name(self) -> str:
        return str(self.solution.get("name"))

    def worker(self) -> WorkerProcess:
        """Start and build the worker unless it runs; Rejected (build_error, crashed, timeout ...) if that fails."""
        if self._worker is None:
            require_sound(self.solution, self.definition)
            self._worker = self.judge.spawn()
            try:
                self.style = self._worker.ask(
                    "build", self.judge.options.limits.build, definition=self.definition, solution=self.solution
                )
            except Rejected:
                self.retire()
                raise
        return self._worker

    def disturbed(self) -> str:
        """Say what changed in the scheduling state of its worker since its last stage; empty if nothing did."""
        return self._worker.disturbed() if self._worker else ""

    def retire(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def bench(self, case: JudgedCase) -> Bench:
        judge = self.judge
        return Bench(self.worker(), case, judge.options.limits, judge.overhead_ns)
