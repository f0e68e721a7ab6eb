"""Imports and captures killed by SIGKILL at a chosen point. A script that forks a child for each job.

Usage: killed.py JOBS, a JSON list of [point, run, root]. Prints the signal that ended each child, as JSON.
One interpreter serves all jobs, because loading torch takes longer than everything else; nothing is computed
before the forks, so they lose no threads.
"""

import json
import os
import signal
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "scripts"), str(HERE.parents[1])]

from helpers import toy
from inference_kernels.capture import importer
from inference_kernels.core import files


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_calls(module: object, name: str, count: int) -> None:
    """Kill when `module.name` has returned `count` times."""
    original, left = getattr(module, name), [count]

    def counted(*arguments):
        result = original(*arguments)
        left[0] -= 1
        if left[0] == 0:
            die()
        return result

    setattr(module, name, counted)


def at_replace(part: str) -> None:
    """Kill when a finished temporary file is about to get a final name that contains `part`."""
    original = os.replace

    def replace(source, target):
        if part in str(target):
            die()
        original(source, target)

    files.os.replace = replace


def capture(run: Path, root: Path) -> None:
    """Killed between the tensors and the manifest of the second case."""
    folder = toy.start_run(run)
    toy.play_case(folder, root, f"{toy.NAME}3", 3)
    folder.begin_case(f"{toy.NAME}5", {"rows": 5})
    toy.record_call(folder, root, 5)
    die()


POINTS = {
    "before the first copy": lambda: setattr(importer, "copy_checked", die),
    "inside a copy": lambda: at_replace(".safetensors"),
    "after one copy": lambda: after_calls(importer, "copy_checked", 1),
    "after five copies": lambda: after_calls(importer, "copy_checked", 5),
    "before the records": lambda: at_replace("captures.jsonl"),
    "between records and workloads": lambda: after_calls(importer, "write_captures", 1),
    "inside a workload file": lambda: at_replace(f"{toy.NAME}.jsonl"),
    "between two workload files": lambda: after_calls(importer, "write_workloads", 1),
}


def main() -> None:
    signals = []
    for point, run, root in json.loads(sys.argv[1]):
        child = os.fork()
        if child == 0:
            if point == "capture":
                capture(Path(run), Path(root))
            POINTS[point]()
            toy.import_run(Path(run), Path(root))
            os._exit(0)
        signals.append(os.WTERMSIG(os.waitpid(child, 0)[1]))
    print(json.dumps(signals))


if __name__ == "__main__":
    main()
