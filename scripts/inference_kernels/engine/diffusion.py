"""One capture run of SGLang's diffusion runtime, from the start of the engine to the complete manifest.

Starts the engine with the capture plugin on PYTHONPATH, sends the requests one by one, keeps every image or
video, stops the engine, and replays every captured call before it completes the manifest.
"""

import hashlib
import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inference_kernels.capture.engine import STUBS, Report, engine_failures, engine_output, set_environment
from inference_kernels.capture.recorder import CHECKPOINT_VARIABLE
from inference_kernels.capture.run import RunFolder
from inference_kernels.capture.validate import require_passed
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import write_json
from inference_kernels.core.hashing import sha256_file
from inference_kernels.engine.diffusion_settings import DiffusionOptions, engine_environment, engine_flags, settings
from inference_kernels.engine.media import media_size
from inference_kernels.engine.summary import media_document, media_summary, replay_calls


def capture(options: DiffusionOptions, report: Report, description: Path | None = None) -> dict[str, Any]:
    """Do the whole run, new or resumed, and return its summary. description: file for `media_document`.

    CaptureError if a request or a hook fails, an image or video is missing, an expected operator was never
    captured, or a captured call lies outside its task's tolerance. The manifest stays incomplete then.
    """
    run = RunFolder.open(options.run, settings(options))
    if run.manifest["complete"]:
        report("the run is complete already")
    else:
        _finish(options, run, report)
    if description:
        write_json(description, media_document(run, options.media))
    return media_summary(run, options.media)


def _finish(options: DiffusionOptions, run: RunFolder, report: Report) -> None:
    pending = [case for case in options.cases if case not in run.finished_cases]
    if pending:
        _require_images(options)
        log = options.run.parent / "engine.log"
        report(f"starting SGLang {version('sglang')} on {options.device}; its output goes to {log}")
        with engine_output(log) as console:
            _serve(options, run, pending, log, lambda line: print(line, file=console, flush=True))
    run.require_operators(options.definitions)
    require_passed(replay_calls(run, (), options.device, report), str(run.root))
    run.complete()


def _require_images(options: DiffusionOptions) -> None:
    """CaptureError, before the engine starts, if an image to edit will not be there."""
    for case in options.cases:
        source = options.model.cases[case].edits
        made = source in options.cases and not options.reference_image
        if source and not made and not _image_to_edit(options, source).is_file():
            capturable = f"capture {source} too, or " if source in options.model.cases else ""
            raise CaptureError(
                expected=f"an image at {_image_to_edit(options, source)}",
                found="none",
                where=case,
                remedy=f"{capturable}pass --reference-image",
            )


def _image_to_edit(options: DiffusionOptions, source: str) -> Path:
    return options.reference_image or options.outputs / f"{source}_0.png"


def _serve(options: DiffusionOptions, run: RunFolder, pending: list[str], log: Path, report: Report) -> None:
    checkpoint = {CHECKPOINT_VARIABLE: str(options.model_path.resolve())}
    stubs = [STUBS] if options.device == "cpu" else []
    set_environment(engine_environment(options) | checkpoint, options.run, *stubs)
    from sglang.multimodal_gen import DiffGenerator

    with engine_failures(log):
        engine = DiffGenerator.from_pretrained(model_path=str(options.model_path), **engine_flags(options))
    try:
        run.raise_hook_errors()
        for case in pending:
            started = time.monotonic()
            request = describe_request(options, case)
            run.begin_case(case, request)
            saved = _generate(options, engine, case, request, log)
            seconds = time.monotonic() - started
            run.finish_case(case, saved, seconds)
            report(f"{case}: {len(saved)} of {options.media} in {seconds:.1f} s")
    finally:
        engine.shutdown()


def describe_request(options: DiffusionOptions, case: str) -> dict[str, Any]:
    """Return the request as it goes into the records."""
    kind, (width, height, *frames) = options.model, options.sizes[case]
    spec = kind.cases[case]
    request = {
        "prompt": spec.prompt,
        "prompt_sha256": hashlib.sha256(spec.prompt.encode()).hexdigest(),
        "width": width,
        "height": height,
        "num_outputs": options.num_outputs,
        "seed": options.seed,
        "guidance_scale": 1.0,
    } | kind.parameters
    if frames:
        request |= {"num_frames": frames[0], "use_diffusion_decoder": options.decoder}
    if spec.edits:
        request["reference_image_sha256"] = sha256_file(_image_to_edit(options, spec.edits))
    return request


def _generate(options: DiffusionOptions, engine: Any, case: str, request: dict, log: Path) -> list[str]:
    """Send one request; move its images or videos to <case>_<n>.png or .mp4 and return the names."""
    kind, fresh = options.model, options.outputs / f".{case}"
    source = kind.cases[case].edits
    shutil.rmtree(fresh, ignore_errors=True)
    parameters = {
        "prompt": request["prompt"],
        "width": request["width"],
        "height": request["height"],
        "seed": request["seed"],
        "num_outputs_per_prompt": request["num_outputs"],
        "guidance_scale": request["guidance_scale"],
        "save_output": True,
        "output_path": str(fresh),
        "return_frames": False,
    } | kind.parameters
    if kind.video:
        parameters |= {name: request[name] for name in ("num_frames", "use_diffusion_decoder")}
        parameters["generator_device"] = options.device
    if source:
        parameters["image_path"] = [str(_image_to_edit(options, source))]
    with engine_failures(log):
        results = engine.generate(sampling_params_kwargs=parameters)
    results = results if isinstance(results, list) else [results] if results else []
    sizes = [media_size(Path(result.output_file_path or "")) for result in results]
    expected = [options.sizes[case]] * request["num_outputs"]
    if sizes != expected:
        form = "MP4 files with sound" if kind.video else "PNG files"
        raise CaptureError(expected=f"{form} of sizes {expected}", found=f"{sizes}", where=case, remedy=f"see {log}")
    names = [f"{case}_{index}.{'mp4' if kind.video else 'png'}" for index in range(len(results))]
    for name, result in zip(names, results):
        os.replace(result.output_file_path, options.outputs / name)
    shutil.rmtree(fresh)
    return names
