"""The judge at work: one fork server, one worker a solution, one record a (solution, workload)."""

import contextlib
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .available import Available, available_workloads, data_classes
from .files import read_text
from .hashing import sha256_file
from .judge_case import Case, LargeTensors, load_case
from .judge_floor import REJECT_BELOW, Floor, floor_of
from .judge_gpu import Gpu, driver_version, gpu_state, same_uuid
from .judge_peaks import peaks_of
from .judge_process import ForkServer, WorkerProcess
from .judge_run import Bench, Limits
from .judge_solutions import require_sound, text_hash
from .judge_timing import record_timing, time_modes, trial
from .judge_verdicts import CannotJudge, Rejected
from .tasks import Task, read_task, task_path

PACKAGES = ("torch", "triton", "flashinfer-bench", "flashinfer-python", "sglang", "tilelang", "natten")
CALIBRATION_CALLS = 20


@dataclass
class Options:
    """How to judge.

    Device: cpu or cuda. against: reference or capture. memory_gib: host memory of a worker.
    """

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

    def __init__(self, options: Options):
        self.options, self.root = options, options.root
        self.classes = data_classes(options.root)
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
        """Load of the host over the last minute (a busy host scatters times), and the GPU's clocks and power."""
        gpu = gpu_state(self.options.gpu) if self.options.gpu else {}
        return {"host_load": round(os.getloadavg()[0], 2)} | gpu

    def workloads(self, definition: dict, only: tuple[str, ...]) -> list[Available]:
        return available_workloads(self.root, definition, self.classes, only)

    def task(self, name: str) -> Task:
        return read_task(self.root, name)

    def load(self, definition: dict, item: Available, task: Task, seed: int) -> Case:
        case = load_case(self.root, definition, item, task, self.options.device, seed, self.options.against, self.banks)
        if self.options.device == "cuda":
            import torch

            torch.cuda.empty_cache()
        return case

    def floor(self, case: Case) -> Floor:
        return floor_of(
            case.definition,
            case.axes,
            case.tensors,
            case.output_bytes(),
            self.peaks,
            self.environment.get("l2_bytes", 0),
        )


class Subject:
    """A solution and its worker.

    A worker that saw a failure is replaced: it may be spoiled (CUDA errors, state).
    """

    def __init__(self, judge: Judge, definition: dict, solution: dict):
        self.judge, self.definition, self.solution = judge, definition, solution
        self.style: dict[str, Any] = {}
        self._worker: WorkerProcess | None = None

    @property
    def name(self) -> str:
        return str(self.solution.get("name"))

    def worker(self) -> WorkerProcess:
        """The built worker; Rejected (build_error, crashed, timeout ...) if it cannot be had."""
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
        """What somebody changed about its worker since that was left; empty if nothing, or if there is none."""
        return self._worker.disturbed() if self._worker else ""

    def retire(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def bench(self, case: Case) -> Bench:
        judge = self.judge
        return Bench(self.worker(), case, judge.options.limits, judge.options.device, judge.overhead_ns)


def new_record(subject: Subject, item: Available, task: Task, seed: int) -> dict[str, Any]:
    judge = subject.judge
    workload = item.workload
    return {
        "solution": subject.name,
        "definition": subject.definition["name"],
        "workload": item.uuid,
        "class": item.data_class,
        "axes": workload["axes"],
        "status": "pass",
        "detail": "",
        "against": judge.options.against,
        "timed": task.timing["timed"],
        "group_axis": task.group_axis,
        "comparisons": {},
        "timing": {},
        "notes": [],
        "checked_calls": {},
        "floor": None,
        "seed": seed,
        "seconds": {},
        "clocks": {},
        "environment": judge.environment,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "hashes": {
            "solution": text_hash(subject.solution),
            "workload": text_hash(workload),
            "task": sha256_file(task_path(judge.root, task.definition)),
        },
    }


def fill_record(record: dict[str, Any], bench: Bench | None, floor: Floor | None) -> None:
    """Copy what the bench found; a time below the floor turns the record into a rejection."""
    record["seconds"] = summed_up(record["seconds"] | (bench.sheet.seconds if bench else {}))
    if bench is not None:
        sheet = bench.sheet
        record |= {
            "comparisons": sheet.comparisons,
            "notes": sheet.notes,
            "checked_calls": sheet.checked_calls,
            "timing": {mode: timing.to_json() for mode, timing in sheet.timing.items()},
        }
    if floor is not None:
        record["floor"] = floor.to_json()
        for mode, timing in record["timing"].items():
            timing["floor_ratio"] = timing["median_us"] / floor.microseconds if floor.microseconds else None
            if record["status"] == "pass" and timing["median_us"] < REJECT_BELOW * floor.microseconds:
                record |= {
                    "status": "impossible_time",
                    "detail": f"{mode} takes {timing['median_us']:.2f} us; bytes and operations need "
                    f"{floor.microseconds:.2f} us at this device's measured peaks",
                }


@contextlib.contextmanager
def counted(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time that the block takes to `seconds[name]`."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun


@contextlib.contextmanager
def meanwhile(work: Callable[[], dict[str, Any]]) -> Iterator[Future]:
    """`work` in a thread beside the block; nvidia-smi takes 50 ms."""
    with ThreadPoolExecutor(1) as aside:
        yield aside.submit(work)


def summed_up(seconds: dict[str, float]) -> dict[str, float]:
    """With `overhead`: what the harness took for one workload, beside the solution's own time and worker start."""
    own = sum(seconds.get(name, 0.0) for name in ("start", "first_calls", "kernels"))
    return {name: round(value, 3) for name, value in (seconds | {"overhead": seconds.get("total", 0.0) - own}).items()}


def judge_workload(subject: Subject, item: Available, task: Task) -> dict[str, Any]:
    """Validate (and time) one solution on one workload. Never raises Rejected: the record says it all."""
    judge, seed = subject.judge, secrets.randbits(48)
    record, bench, floor = new_record(subject, item, task, seed), None, None
    with counted(record["seconds"], "total"):
        try:
            with meanwhile(judge.state) as before, counted(record["seconds"], "load"):
                case = judge.load(subject.definition, item, task, seed)
            floor = judge.floor(case)
            record["clocks"]["before"] = before.result()
            with counted(record["seconds"], "start"):
                bench = subject.bench(case)
            bench.load()
            bench.validate()
            if not judge.options.validation_only:
                time_alone(bench, task)
            with meanwhile(judge.state) as after:
                bench.finish()
            record["clocks"]["after"] = after.result()
        except Rejected as error:
            record |= {"status": error.status, "detail": error.detail}
            subject.retire()
    fill_record(record, bench, floor)
    return record


def time_alone(bench: Bench, task: Task) -> None:
    iterations, warmup, trials = (task.timing[key] for key in ("iters", "warmup", "trials"))
    try:
        time_modes(bench, iterations, warmup, trials)
    except Rejected as error:
        if error.status == "not_capturable":
            bench.sheet.notes.append("eager call time only: the launch cannot be captured in a graph")
            with contextlib.suppress(Rejected):
                record_timing(bench, "call", trial(bench, "call", iterations, warmup), iterations)
        raise


def benchmark(
    judge: Judge, definition: dict, solution: dict, only: tuple[str, ...], skip: set[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    """Records of one solution on the workloads of its definition (`only` those, if any), without `skip`."""
    task = judge.task(definition["name"])
    subject = Subject(judge, definition, solution)
    try:
        for item in judge.workloads(definition, only):
            if (text_hash(solution), text_hash(item.workload)) not in skip:
                yield judge_workload(subject, item, task)
    finally:
        subject.retire()


def read_mounts() -> str:
    return read_text(Path("/proc/mounts")) if os.path.exists("/proc/mounts") else ""
