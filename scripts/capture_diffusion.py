#!/usr/bin/env python3
"""Capture operator calls of a real SGLang diffusion run: start the engine, send the requests, validate.

Runs in the engine's environment (`make engine`), and switches to it by itself. The same command resumes an
interrupted run. Images and videos go to a folder beside --output-root.
"""

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from inference_kernels.capture.engine import ENGINE_PYTHON
from inference_kernels.capture.kinds import STEP_NAMES, Kind
from inference_kernels.cli import print_json, run_main
from inference_kernels.core.errors import EnvironmentMissing
from inference_kernels.engine.diffusion import capture
from inference_kernels.engine.diffusion_settings import DiffusionOptions
from inference_kernels.models.registry import MEDIA, MODALITIES

CASES = [case for kind in MEDIA.values() for case in kind.cases]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    add = result.add_argument
    add("--kind", required=True, choices=sorted(MEDIA), help="architecture")
    add("--model-path", required=True, type=Path, metavar="DIR", help="checkpoint folder")
    add("--output-root", required=True, type=Path, metavar="RUN", help="new folder, or the run to resume")
    add(
        "--case",
        action="append",
        metavar="NAME",
        help=f"request to send, of {', '.join(CASES)}; repeatable (default: all)",
    )
    add(
        "--size",
        action="append",
        default=[],
        metavar="NAME=WxH[xFRAMES]",
        help="size of a case, of a video with its frames; repeatable",
    )
    add("--num-outputs", type=int, default=1, choices=(1, 2, 4), help="outputs of each request")
    add("--definition", action="append", metavar="NAME", help="capture only these; repeatable")
    add(
        "--layer",
        action="append",
        metavar="NAME",
        help="GEMM layers, attentions and decoder stages to capture; repeatable",
    )
    add("--block", type=int, metavar="N", help="transformer block to capture (default: the middle one)")
    add(
        "--steps-captured",
        metavar="NAMES",
        help="attention steps, of first,early,middle,last; GEMMs take the first and the last of them "
        "(default: all; for videos all but the first)",
    )
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where the engine runs (default cpu)")
    add("--attention-backend", metavar="NAME", help="the engine's flag (default: the engine's choice)")
    for modality in MODALITIES:
        add(
            f"--{modality}-sdpa-backend",
            choices=("math", "default"),
            help=f"torch SDPA of the transformer's {modality} attention (default: the engine's choice)",
        )
    add("--reference-image", type=Path, metavar="PNG", help="image to edit or to animate")
    add("--summary", type=Path, metavar="JSON", help="write shapes and replay errors of all calls there")
    add("--seed", type=int, default=42, help="seed of the first output (default 42)")
    add("--model-id", help="of a published checkpoint")
    add("--model-revision", help="of a published checkpoint")
    return result


def options(arguments: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> DiffusionOptions:
    """Check the arguments against the kind; `refuse(message)` ends the program."""
    kind = MEDIA[arguments.kind]

    def chosen(flag: str, values: list[str] | None, known: list[str], default: list[str]) -> list[str]:
        for value in values or []:
            if value not in known:
                refuse(f"{flag} {value!r}: choose from {', '.join(known)}")
        return [name for name in known if name in (values or default)]

    backends = {name: getattr(arguments, f"{name}_sdpa_backend") for name in MODALITIES}
    if any(backends.values()) and not kind.modalities:
        refuse(f"--audio-sdpa-backend and --video-sdpa-backend are not for --kind {arguments.kind}")
    names = arguments.steps_captured.split(",") if arguments.steps_captured else None
    layers = chosen("--layer", arguments.layer, list(kind.layers), kind.default_layers)
    steps = chosen("--steps-captured", names, STEP_NAMES, kind.default_steps)
    reachable = kind.definitions(layers, steps)
    if arguments.block is not None and arguments.block < 0 or arguments.seed < 0:
        refuse("--block and --seed must be >= 0")
    found = DiffusionOptions(
        kind=arguments.kind,
        model_path=arguments.model_path,
        run=arguments.output_root,
        cases=chosen("--case", arguments.case, list(kind.cases), list(kind.cases)),
        sizes=sizes(arguments.size, kind, refuse),
        num_outputs=arguments.num_outputs,
        definitions=chosen("--definition", arguments.definition, reachable, reachable),
        layers=layers,
        steps=steps,
        block=arguments.block,
        device=arguments.device,
        seed=arguments.seed,
        reference_image=arguments.reference_image,
        model_id=arguments.model_id,
        model_revision=arguments.model_revision,
        attention_backend=arguments.attention_backend,
        sdpa_backends={name: backends[name] or "default" for name in kind.modalities},
    )
    for case in found.cases if found.decoder else []:
        if any(value < least for value, least in zip(found.sizes[case], kind.decoder_smallest)):
            refuse(f"{case}: the decoder takes {'x'.join(map(str, kind.decoder_smallest))} or more")
    return found


def sizes(texts: list[str], kind: Kind, refuse: Callable[[str], NoReturn]) -> dict[str, tuple[int, ...]]:
    """Return width, height (and frames) of every case: the kind's own, and those of the `--size` flags."""
    result = {name: case.size for name, case in kind.cases.items()}
    form = "NAME=WxHxFRAMES" if kind.video else "NAME=WxH"
    for text in texts:
        match = re.fullmatch(rf"(\w+)=([0-9]{{1,5}}(?:x[0-9]{{1,5}}){{{len(kind.smallest) - 1}}})", text)
        if not match or match[1] not in kind.cases:
            refuse(f"--size {text!r}: write {form} with a NAME of {', '.join(kind.cases)}")
        size = tuple(map(int, match[2].split("x")))
        if (
            any(value < least for value, least in zip(size, kind.smallest))
            or size[0] % kind.size_step
            or size[1] % kind.size_step
            or kind.video
            and size[2] % 8 != 1
        ):
            refuse(
                f"--size {text!r}: width and height must be multiples of {kind.size_step}"
                + (", frames one more than a multiple of 8" if kind.video else "")
                + f", and {'x'.join(map(str, kind.smallest))} or more"
            )
        result[match[1]] = size
    return result


def enter_engine_environment() -> None:
    """Restart in the engine's interpreter if this one has no SGLang; EnvironmentMissing if there is none."""
    if importlib.util.find_spec("sglang"):
        return
    if not ENGINE_PYTHON.exists() or Path(sys.prefix).resolve() == ENGINE_PYTHON.parents[1].resolve():
        raise EnvironmentMissing(
            expected="SGLang 0.5.23 in .venv-engine", found="none", where=sys.executable, remedy="run `make engine`"
        )
    os.execv(ENGINE_PYTHON, [str(ENGINE_PYTHON), *sys.argv])


def main() -> int:
    command = parser()
    arguments = command.parse_args()
    chosen = options(arguments, command.error)
    enter_engine_environment()
    print_json(capture(chosen, lambda line: print(line, file=sys.stderr, flush=True), arguments.summary))
    return 0


if __name__ == "__main__":
    run_main(main)
