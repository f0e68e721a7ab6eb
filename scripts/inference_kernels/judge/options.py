"""Options that the three judging commands share, and the context manager in which they judge."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from inference_kernels.core.layout import REPOSITORY
from inference_kernels.core.ranges import real, whole
from inference_kernels.judge.verdicts import CannotJudge

if TYPE_CHECKING:
    from inference_kernels.core.tasks import Task
    from inference_kernels.judge.judge import Judge

WEEK = 7 * 24 * 3600  # more seconds than any wait is meant to last
MOST_MEMORY_GIB = 2**16  # 64 TiB: as bytes it fits the system's limits
HOST_NOTICE = "note: --gpu cpu times with the host clock; never compare its figures with GPU ones"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every judging command."""
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="UUID",
        help="unique prefix of the UUID of a GPU or MIG instance; `cpu` tries the harness",
    )
    parser.add_argument(
        "--lock-directory", type=Path, metavar="DIR", help="local folder of the GPU lock files; needed with a GPU"
    )
    parser.add_argument(
        "--lock-timeout",
        type=real(0, WEEK),
        default=0.0,
        metavar="S",
        help="seconds to wait for a busy GPU (default: 0)",
    )
    parser.add_argument(
        "--timeout",
        type=real(0.001, WEEK),
        default=600.0,
        metavar="S",
        help="seconds for a build or a first call, which may compile (default: 600)",
    )
    parser.add_argument(
        "--call-timeout",
        type=real(0.001, WEEK),
        default=60.0,
        metavar="S",
        help="seconds for any later call (default: 60)",
    )
    parser.add_argument(
        "--memory-limit",
        type=real(0.25, MOST_MEMORY_GIB),
        default=64.0,
        metavar="GIB",
        help="host memory of a solution's process (default: 64)",
    )
    parser.add_argument(
        "--repeat",
        type=whole(2, 1000),
        default=2,
        metavar="N",
        help="validated calls on each input set, at least 2 (default: 2)",
    )
    parser.add_argument("--dev", action="store_true", help="only the workloads in the task's dev list")
    parser.add_argument("--validation-only", action="store_true", help="check outputs, measure no times")


@contextmanager
def judging(options: argparse.Namespace, against: str = "reference") -> Iterator["Judge"]:
    """Run a Judge on the chosen device, and hold the GPU's lock meanwhile."""
    from inference_kernels.core.locks import locked, network_warning
    from inference_kernels.judge.bench import Limits
    from inference_kernels.judge.gpu import nvidia_smi, resolve
    from inference_kernels.judge.judge import Judge, JudgeOptions

    chosen = JudgeOptions(
        options.root,
        against=against,
        validation_only=options.validation_only,
        memory_gib=options.memory_limit,
        limits=Limits(options.timeout, options.call_timeout, options.repeat),
    )
    with ExitStack() as stack:
        if options.gpu == "cpu":
            sys.stderr.write(HOST_NOTICE + "\n")
        else:
            if options.lock_directory is None:
                raise CannotJudge(
                    expected="--lock-directory with a GPU",
                    found="none",
                    where="command line",
                    remedy="name the folder that all users of this machine's GPUs share",
                )
            chosen.device, chosen.gpu = "cuda", resolve(options.gpu, nvidia_smi("-L"))
            warning = network_warning(options.lock_directory)
            if warning:
                sys.stderr.write(f"warning: {warning}\n")
            stack.enter_context(locked(options.lock_directory, [chosen.gpu.physical], options.lock_timeout))
            _see_only(chosen.gpu.uuid)
            _require_cuda()
        yield stack.enter_context(Judge(chosen))


def _see_only(uuid: str) -> None:
    """Put the judge's own CUDA context (references, comparison) on the same card, before torch starts CUDA."""
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = uuid


def _require_cuda() -> None:
    """Raise CannotJudge for a build of torch without CUDA, or one that cannot use the card that is visible."""
    import torch

    if torch.version.cuda is None:
        found = f"torch {torch.__version__}, a build without CUDA"
    elif not torch.cuda.is_available():
        found = f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no usable GPU"
    else:
        return
    raise CannotJudge(
        expected="a torch that can use the GPU of --gpu",
        found=found,
        where=sys.executable,
        remedy="install a CUDA build of torch that the driver supports, or use --gpu cpu to try the harness",
    )


def chosen_workloads(task: "Task", dev: bool) -> tuple[str, ...]:
    """List the UUIDs to judge, none for all; CannotJudge for --dev where the task has no dev list."""
    if dev and not task.dev:
        raise CannotJudge(
            expected="a dev list in the task",
            found="an empty one",
            where=f"tasks/{task.definition}.json",
            remedy="judge all workloads, or choose a dev subset",
        )
    return task.dev if dev else ()
