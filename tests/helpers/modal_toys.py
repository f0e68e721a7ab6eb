"""A toy checkout whose capture script plays cases of helpers/toy.py, and what a rented capture of it needs.

The capture script obeys files of a control folder, each once: `<case>.kill` ends the container in the
middle of the case, `<case>.stop` tells it to stop there, `<case>.fail` and `<case>.crash` end the capture
itself, `<case>.hang` waits endlessly. `served.txt` lists the cases it began.
"""

import json
import shutil
from pathlib import Path

from helpers import toy
from inference_kernels.cloud.local import LocalRunner
from inference_kernels.cloud.plan import CapturePlan, Choices
from inference_kernels.cloud.retrieve import CallSelection
from inference_kernels.cloud.run import run
from inference_kernels.cloud.spec import CHECKPOINT, code_digest, model_volume

REPOSITORY = Path(__file__).resolve().parents[2]
CASES = ["text_to_image", "landscape", "transparent"]
SCRIPT = f'''
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = ["{REPOSITORY / "tests"}"]
out, control = Path(sys.argv[sys.argv.index("--output-root") + 1]), Path("CONTROL")
cases = [sys.argv[i + 1] for i, text in enumerate(sys.argv) if text == "--case"]

def told(case, what):
    path = control / f"{{case}}.{{what}}"
    return path.exists() and not path.unlink()

def main():
    for case in cases:
        if told(case, "hang"):
            (control / "hanging").write_text(str(os.getppid()))
            time.sleep(60)
        if told(case, "crash"):
            os.kill(os.getpid(), signal.SIGKILL)
    from helpers import toy
    from inference_kernels.capture.validate import require_passed, validate_run
    run = toy.start_run(out)
    images, root = out.parent / "images", Path(__file__).parents[1]
    images.mkdir(exist_ok=True)
    (out.parent / "engine.log").write_text("toy engine\\n")
    for number, case in enumerate(cases):
        if case in run.finished_cases:
            continue
        with open(control / "served.txt", "a") as served:
            served.write(case + "\\n")
        run.begin_case(case, {{"rows": 3 + 2 * number}})
        toy.record_call(run, root, 3 + 2 * number)
        if told(case, "fail"):
            print("error: the toy engine fails", file=sys.stderr)
            return 2
        if told(case, "kill"):
            time.sleep(0.5)
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if told(case, "stop"):
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(30)
        (images / f"{{case}}_0.png").write_bytes(b"image of " + case.encode())
        run.finish_case(case, [f"{{case}}_0.png"], 0.1)
    require_passed(list(validate_run(run, root, "cpu")), str(out))
    run.complete()

sys.exit(main())
'''


class ToyRental:
    """One name captured by the toy script on the local runner, in folders below `path`."""

    def __init__(self, path: Path):
        self.path, self.control, self.checkout = path, path / "control", path / "checkout"
        self.control.mkdir()
        shutil.copytree(
            REPOSITORY / "scripts" / "inference_kernels",
            self.checkout / "scripts" / "inference_kernels",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for part in ("definitions", "tasks"):
            shutil.copytree(toy.DATA / part, self.checkout / part)
        for part in ("retired", "prompts"):
            (self.checkout / part).mkdir()
            (self.checkout / part / "note.txt").write_text("no container has empty folders\n")
        (self.checkout / "agentx_shapes.json").write_text("{}")
        script = SCRIPT.replace("CONTROL", str(self.control))
        (self.checkout / "scripts" / "capture_diffusion.py").write_text(script)
        self.lines: list[str] = []
        self.mark_prepared()

    def mark_prepared(self) -> None:
        marker = self.volumes / model_volume("image") / f"qwen-image-2.1-turbo-seeded.{CHECKPOINT}"
        marker.parent.mkdir(parents=True)
        marker.write_text(json.dumps({"kind": "image", "folder": "toy", "class": "seeded"}))

    @property
    def volumes(self) -> Path:
        return self.path / "root" / "volumes"

    @property
    def folder(self) -> Path:
        """Of the capture, in the captures volume."""
        return self.volumes / "inference-kernels-captures" / "captures" / "toy"

    @property
    def target(self) -> Path:
        return self.path / "results" / "toy"

    @property
    def served(self) -> list[str]:
        return (self.control / "served.txt").read_text().split()

    def tell(self, case: str, what: str) -> None:
        (self.control / f"{case}.{what}").touch()

    def plan(self, **changes) -> CapturePlan:
        return CapturePlan(
            Choices(
                **{
                    "name": "toy",
                    "kind": "image",
                    "code_sha256": code_digest(self.checkout),
                    "cases": CASES,
                    "seeded": True,
                    "device": "cpu",
                }
                | changes
            )
        )

    def runner(self, plan: CapturePlan) -> LocalRunner:
        return LocalRunner(self.path / "root", plan.job_name, self.checkout)

    def run(self, selection: CallSelection = CallSelection(), **changes) -> dict:
        plan = self.plan(**changes)
        return run(plan, self.runner(plan), self.target, self.path / "locks", 0.0, selection, self.lines.append)
