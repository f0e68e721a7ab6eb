#!/usr/bin/env python3
"""Capture on rented GPUs: prepare a model's volume, run the capture script there, retrieve what it validated.

Flags of the capture script that are not listed here can follow `--`. The same command resumes an interrupted
capture.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from inference_kernels.cli import print_json, print_table, run_main
from inference_kernels.cloud.plan import CapturePlan, Choices
from inference_kernels.cloud.retrieve import CallSelection
from inference_kernels.cloud.spec import CONTAINER_BASE, ENGINE_IMAGE, code_digest
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.models.registry import MEDIA, MODALITIES, PUBLISHED

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
MANIFEST, LOCAL_ROOT = Path("results/ltx-2.5-manifest.json"), Path("results/modal-local")
SDPA_KINDS = ", ".join(kind for kind, media in MEDIA.items() if media.modalities)
CONVERTED_KINDS = ", ".join(kind for kind, model in PUBLISHED.items() if model.converted)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    add = result.add_argument
    add("--name", required=True, help="of the run: files go to results/capture/NAME")
    add("--kind", required=True, choices=list(PUBLISHED), help="architecture")
    add("--lock-directory", required=True, type=Path, metavar="DIR", help="folder of the exclusive locks")
    add("--lock-timeout", type=float, default=0.0, metavar="SECONDS", help="wait for locks (default: do not)")
    add("--prepare-model", action="store_true", help="fill the model's volume from a CPU worker, capture nothing")
    add("--retrieve-only", action="store_true", help="go on with retrieving, by the saved inventory; rent nothing")
    add("--dry-run", action="store_true", help="print the plan and what its cost depends on; rent nothing")
    help_case = "request to send; repeatable (default: all of the kind that are sent one at a time)"
    add("--case", action="append", metavar="NAME", help=help_case)
    add_media_flags(add)
    add_text_flags(add)
    help_engine = "engine image: id of a prepared one, or by digest (default: the pinned one)"
    add("--image", default=ENGINE_IMAGE, metavar="ID", help=help_engine)
    add("--seeded", action="store_true", help="an untrained checkpoint from its seed instead of the published one")
    add("--model-revision", metavar="SHA", help="--prepare-model: revision to pin (default: the volume's pin)")
    add("--hub-secret", metavar="NAME", help="Modal secret that holds HF_TOKEN, for gated downloads")
    help_manifest = f"{CONVERTED_KINDS} --prepare-model: the manifest of prepare_ltx.py (default {MANIFEST})"
    add("--manifest", type=Path, default=MANIFEST, metavar="JSON", help=help_manifest)
    add("--timeout-hours", type=float, metavar="H", help="time limit (default: computed from the cases)")
    help_runner = "where containers run; local: as a subprocess here, on CPU (default modal)"
    add("--runner", choices=("modal", "local"), default="modal", help=help_runner)
    help_root = f"scratch folder of --runner local (default {LOCAL_ROOT})"
    add("--local-root", type=Path, default=LOCAL_ROOT, metavar="DIR", help=help_root)
    add("capture_flags", nargs="*", metavar="-- FLAG", help="flags for the capture script")
    return result


def add_media_flags(add: Callable[..., object]) -> None:
    add("--num-outputs", type=int, choices=(1, 2, 4), help="outputs of each image or video request (default 1)")
    for modality in MODALITIES:
        help_sdpa = f"{SDPA_KINDS}: SDPA of {modality} attention"
        add(f"--{modality}-sdpa-backend", choices=("math", "default"), help=help_sdpa)
    help_image = f"image to edit or animate: a file here, or of a capture: {CONTAINER_BASE}/data/captures/..."
    add("--reference-image", metavar="PNG", help=help_image)


def add_text_flags(add: Callable[..., object]) -> None:
    add("--max-output-tokens", type=int, metavar="N", help="cap the output of text requests, for a quick check")
    add("--gpus", type=int, metavar="N", help="GPUs of a text model (default: the published number)")
    help_sizes = "retrieve only text-model calls of these batch sizes"
    add("--batch-sizes", type=int, nargs="+", default=[], metavar="N", help=help_sizes)
    help_ends = "retrieve only the shortest and longest context of each text operator, batch size and phase"
    add("--context-endpoints", action="store_true", help=help_ends)


def check(arguments: argparse.Namespace, refuse) -> None:
    """Refuse combinations that make no sense; `refuse(message)` ends the program."""
    media, prepare = MEDIA.get(arguments.kind), arguments.prepare_model
    for_media = arguments.num_outputs or arguments.reference_image
    for_text = arguments.max_output_tokens or arguments.gpus or arguments.batch_sizes or arguments.context_endpoints
    for_video = arguments.audio_sdpa_backend or arguments.video_sdpa_backend
    numbers = (arguments.max_output_tokens, arguments.gpus, arguments.timeout_hours, *arguments.batch_sizes)
    wrong = {
        "--name: up to 40 letters, digits, dots, dashes": not NAME.fullmatch(arguments.name),
        "--num-outputs and --reference-image are for images and videos": not media and for_media,
        "--max-output-tokens, --gpus, --batch-sizes and --context-endpoints are for text models": media and for_text,
        f"--audio-sdpa-backend and --video-sdpa-backend are for --kind {SDPA_KINDS}": not (media and media.modalities)
        and for_video,
        "--prepare-model and --retrieve-only exclude each other": prepare and arguments.retrieve_only,
        "--model-revision needs --prepare-model": arguments.model_revision and not prepare,
        "numbers must be positive": any(value is not None and value <= 0 for value in numbers),
    }
    for message, holds in wrong.items():
        if holds:
            refuse(message)
    image = arguments.reference_image
    if image and not image.startswith(f"{CONTAINER_BASE}/data/") and not Path(image).is_file():
        refuse(f"--reference-image {image}: no such file, and not a path below {CONTAINER_BASE}/data")
    if needs_manifest(arguments) and not (arguments.dry_run or arguments.manifest.is_file()):
        refuse(f"--manifest {arguments.manifest}: no such file; see prepare_ltx.py for what it holds")


def needs_manifest(arguments: argparse.Namespace) -> bool:
    """Whether a published checkpoint is to be converted, which takes the manifest of its distribution."""
    return PUBLISHED[arguments.kind].converted and arguments.prepare_model and not arguments.seeded


def choices(arguments: argparse.Namespace) -> Choices:
    places = f"uploads/{arguments.name}"
    image, uploads, manifest = arguments.reference_image, {}, None
    if image and not image.startswith(f"{CONTAINER_BASE}/data/"):
        uploads[f"{places}/reference.png"] = Path(image)
        image = f"{CONTAINER_BASE}/data/{places}/reference.png"
    if needs_manifest(arguments):
        uploads[f"{places}/manifest.json"] = arguments.manifest
        manifest = f"{CONTAINER_BASE}/data/{places}/manifest.json"
    backends = {name: getattr(arguments, f"{name}_sdpa_backend") for name in MODALITIES}
    return Choices(
        name=arguments.name,
        kind=arguments.kind,
        code_sha256=code_digest(REPOSITORY),
        prepare_model=arguments.prepare_model,
        cases=arguments.case,
        num_outputs=arguments.num_outputs or 1,
        max_output_tokens=arguments.max_output_tokens,
        reference_image=image,
        uploads=uploads,
        manifest=manifest,
        sdpa={name: value for name, value in backends.items() if value},
        image=arguments.image,
        gpus=arguments.gpus,
        seeded=arguments.seeded,
        model_revision=arguments.model_revision,
        timeout_seconds=arguments.timeout_hours and round(arguments.timeout_hours * 3600),
        device="cpu" if arguments.runner == "local" else "cuda",
        capture_flags=tuple(arguments.capture_flags),
    )


def make_runner(arguments: argparse.Namespace, plan: CapturePlan):
    if arguments.runner == "local":
        from inference_kernels.cloud.local import LocalRunner

        return LocalRunner(arguments.local_root, plan.job_name)
    from inference_kernels.cloud.modal_client import ModalRunner, load_client

    return ModalRunner(load_client(), arguments.image, arguments.hub_secret)


def show(plan: CapturePlan) -> int:
    """Print the plan as a table of cases and one line of JSON."""
    description = plan.describe()
    print_table(
        [
            {"case": case.name, "seconds": round(case.seconds), "state": case.missing or "can be sent"}
            for case in plan.cases
        ],
        ["case", "seconds", "state"],
    )
    shown = ("gpu", "gpus", "image", "volumes", "timeout_seconds", "locks", "expected_files", "cost_inputs")
    for name in shown:
        print(f"{name}: {description[name]}")
    print_json(description)
    return 0


def main() -> int:
    command = parser()
    arguments = command.parse_args()
    check(arguments, command.error)
    plan = CapturePlan(choices(arguments))
    if arguments.dry_run:
        return show(plan)
    from inference_kernels.cloud import run

    action = run.retrieve_only if arguments.retrieve_only else run.run
    target = REPOSITORY / "results" / "capture" / arguments.name
    selection = CallSelection(tuple(arguments.batch_sizes), arguments.context_endpoints)
    print_json(
        action(
            plan,
            make_runner(arguments, plan),
            target,
            arguments.lock_directory,
            arguments.lock_timeout,
            selection,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    )
    return 0


if __name__ == "__main__":
    run_main(main)
