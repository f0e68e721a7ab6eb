"""Capture from SGLang's language runtime: settings of a run, the requests of its cases, validation.

The engine ends its own process when a worker dies, so it runs in a child of the command: finished cases stay,
and the same command goes on with the others.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inference_kernels.capture.engine import PLUGIN, describe_hardware, engine_output
from inference_kernels.capture.llm_hooks import READY
from inference_kernels.capture.recorder import RUN_VARIABLE
from inference_kernels.capture.requests import Case, Profile, Prompt, expected_definitions
from inference_kernels.capture.run import RunFolder
from inference_kernels.core.errors import CaptureError
from inference_kernels.core.files import canonical_json, read_json, write_json
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.engine.agentx import (
    TracedCase,
    TracedPrompt,
    base_ids,
    cached_ranges,
    served_profile,
    trace_record,
)
from inference_kernels.engine.summary import check_answers, flush, generate, replay_calls, summary
from inference_kernels.models.deepseek.hopper import SUBSTITUTIONS
from inference_kernels.seeded.checkpoint import read_recipes

PLUGIN_FOLDER = REPOSITORY / "scripts" / "sglang_plugin"
# The engine lowers max_new_tokens without a word when prompt and output come this close to the context.
CONTEXT_MARGIN = 7
Report = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The command line, checked. cases: in the profile's order. engine_flags: override the profile's."""

    kind: str
    model_path: Path
    run: Path
    cases: list[str]
    profile_name: str = "seeded"
    max_output_tokens: int | None = None
    context_limit: int | None = None
    engine_flags: dict[str, Any] = field(default_factory=dict)
    model_id: str | None = None
    model_revision: str | None = None

    @property
    def profile(self) -> Profile:
        return served_profile(self.kind, self.profile_name, self.max_output_tokens)

    @property
    def log(self) -> Path:
        return self.run.parent / "engine.log"


def capture(options: Options, serve_command: list[str], report: Report) -> dict[str, Any]:
    """Do the whole run, new or resumed, and return its summary.

    serve_command: a command that runs `serve` with these options.

    CaptureError if a case fails, an expected operator was never captured, or a call is outside its tolerance;
    the manifest stays incomplete then.
    """
    run = open_run(options)
    if run.manifest["complete"]:
        report("the run is complete already")
        return summary(run, options.profile.cases)
    if pending_cases(options, run):
        code = subprocess.run(serve_command).returncode
        run = open_run(options)
        left = pending_cases(options, run)
        if code or left:
            raise CaptureError(
                expected=f"{len(options.cases)} cases",
                found=f"{', '.join(left)} not captured",
                where=f"engine process, exit code {code}",
                remedy=f"see above and {options.log}; the same command goes on",
            )
    run.require_operators(expected_definitions(options.profile, options.cases))
    validate(options, run, report)
    run.complete()
    return summary(run, options.profile.cases)


def open_run(options: Options) -> RunFolder:
    """The run folder; everything that can be checked without the engine is checked first."""
    check_flags(options)
    check_context(options)
    return RunFolder.open(options.run, settings(options))


def pending_cases(options: Options, run: RunFolder) -> list[str]:
    return [case for case in options.cases if case not in run.finished_cases]


def serve(options: Options, report: Report) -> None:
    """Start the engine and serve every pending case. Runs in a process of its own."""
    run = open_run(options)
    set_environment(options)
    report(f"starting SGLang {version('sglang')}; its output: {options.log}")
    with engine_output(options.log) as console:

        def say(line: str) -> None:
            print(line, file=console, flush=True)

        if options.profile.phases:
            base_ids(options.model_path)  # an unfit tokenizer is refused before the engine loads
        started = time.monotonic()
        import sglang

        engine = sglang.Engine(model_path=str(options.model_path), **engine_flags(options))
        try:
            say(f"engine ready after {time.monotonic() - started:.0f} s")
            run.raise_hook_errors()
            require_hooks(run)
            for name in pending_cases(options, run):
                seconds = serve_case(options, run, engine, name)
                say(f"{name}: {seconds:.1f} s")
        finally:
            engine.shutdown()


def require_hooks(run: RunFolder) -> None:
    marker = run.root / READY
    if not marker.exists():
        raise CaptureError(
            expected="hooks in the engine's scheduler",
            found="none",
            where="plugin " + PLUGIN,
            remedy="check that PYTHONPATH has scripts/sglang_plugin",
        )
    marker.unlink()


def serve_case(options: Options, run: RunFolder, engine: Any, name: str) -> float:
    """Flush, predecessor, target requests; seconds of the target."""
    profile, case = options.profile, options.profile.cases[name]
    prompts, outputs = [tokens(options, prompt) for prompt in case.prompts], output_tokens(options, case)
    before = tokens(options, case.predecessor) if case.predecessor else None
    flush(engine)
    if before:
        check_answers(f"predecessor of {name}", [before], generate(engine, [before], [1]), [1], [(0, 0)])
    run.begin_case(name, describe_request(options, case, prompts, before))
    started = time.monotonic()
    answers = generate(engine, prompts, outputs)
    seconds = time.monotonic() - started
    run.raise_hook_errors()
    cached = cached_ranges(profile, case, prompts, before)
    counts = check_answers(name, prompts, answers, outputs, cached, profile.page_size)
    complete_requests(run, name, counts)
    run.finish_case(name, [], seconds)
    return seconds


def complete_requests(run: RunFolder, name: str, counts: dict[str, list[int]]) -> None:
    """Add what the engine reported to the records of the case."""
    for path in run.calls():
        call = read_json(path)
        request = call["record"]["request"]
        if request["case"] == name:
            kept = {key: value for key, value in request.items() if key != "keep"}
            call["record"]["request"] = kept | counts
            write_json(path, call)


def describe_request(
    options: Options, case: Case, prompts: list[list[int]], before: list[int] | None
) -> dict[str, Any]:
    """The request as it goes into the records, and `keep`, which is for the hooks only."""
    digest = hashlib.sha256(canonical_json(prompts).encode()).hexdigest()
    request = {
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "output_tokens": output_tokens(options, case),
        "prompt_rule": options.profile.prompt_rule,
        "prompt_sha256": digest,
        "keep": case.keep,
    }
    if before:
        request["predecessor_tokens"] = len(before)
    if isinstance(case, TracedCase):
        request |= trace_record(options.profile, case, base_ids(options.model_path), prompts, before)
    return request


def tokens(options: Options, prompt: Prompt | TracedPrompt) -> list[int]:
    if isinstance(prompt, TracedPrompt):
        return prompt.tokens(base_ids(options.model_path))
    return prompt.tokens(options.profile.tokens, options.profile.image_token)


def output_tokens(options: Options, case: Case) -> list[int]:
    limit = options.max_output_tokens
    return [count if limit is None else min(count, limit) for count in case.outputs]


def longest(options: Options, case: Case) -> int:
    """Tokens of the longest sequence, prompt and output together."""
    return max(prompt.length + count for prompt, count in zip(case.prompts, output_tokens(options, case)))


def check_flags(options: Options) -> None:
    """CaptureError unless the engine runs eagerly and in order: hooks see nothing inside a replayed graph."""
    flags = engine_flags(options)
    required = {
        "cuda_graph_backend_decode": "disabled",
        "cuda_graph_backend_prefill": "disabled",
        "disable_overlap_schedule": True,
    }
    for name, value in required.items():
        if flags.get(name) != value:
            raise CaptureError(
                expected=f"{name}={value!r}",
                found=repr(flags.get(name)),
                where="engine flags",
                remedy="capture without CUDA graphs and without overlap scheduling",
            )
    if flags.get("cuda_graph_config") is not None:
        raise CaptureError(
            expected="no cuda_graph_config",
            found=str(flags["cuda_graph_config"]),
            where="engine flags",
            remedy="it would override the disabled backends",
        )


def check_context(options: Options) -> None:
    limit = engine_flags(options)["context_length"]
    for name in options.cases:
        case = options.profile.cases[name]
        need = longest(options, case) + CONTEXT_MARGIN
        if need > limit:
            raise CaptureError(
                expected=f"a context of at least {need} tokens",
                found=f"{limit}",
                where=name,
                remedy="raise --context-limit, or leave the case out",
            )


def validate(options: Options, run: RunFolder, report: Report) -> None:
    """Replay every call on the GPU; calls that differ by a near-tie only are excluded whole, and listed."""
    from inference_kernels.capture.validate import require_passed

    require_passed(replay_calls(run, options.profile.ties, "cuda", report), str(run.root))


def settings(options: Options) -> dict[str, Any]:
    """Everything that must be equal for a run to be resumed; most of it goes into every record."""
    profile, hardware = options.profile, describe_hardware("cuda")
    model, recipes = describe_model(options)
    active = list(profile.substitutions) if hardware["compute_capability"].startswith("9.") else []
    environment = engine_environment(options, hardware)
    return {
        "kind": options.kind,
        "profile": options.profile_name,
        "model": model,
        "class": "seeded" if profile.seeded else "published",
        "engine": {
            "name": "sglang",
            "version": version("sglang"),
            "torch": version("torch"),
            "flags": engine_flags(options),
            "environment": environment,
            "substitutions": [f"{name}: {SUBSTITUTIONS[name]}" for name in active],
        },
        "hardware": hardware,
        "definitions": list(profile.layers),
        "selection": {"layers": profile.layers},
        "substitutions": active,
        "recipes": recipes,
        "max_output_tokens": options.max_output_tokens,
    }


def describe_model(options: Options) -> tuple[dict[str, Any], dict[str, dict]]:
    """The model's record, and the recipes of the weights that hooks store as inputs."""
    path = options.model_path
    config = canonical_json(
        [
            {
                "config.json": read_json(path / "config.json"),
                "model.safetensors.index.json": read_json(path / "model.safetensors.index.json"),
            },
            {},
        ]
    )
    digest, found = hashlib.sha256(config.encode()).hexdigest(), read_recipes(path)
    if bool(found) != options.profile.seeded:
        raise CaptureError(
            expected=f"a checkpoint of the profile {options.profile_name}",
            where=str(path),
            found="a seeded one" if found else "no seeded_recipe.json",
            remedy="pass --profile, or write the checkpoint with make_seeded_checkpoint.py",
        )
    if not found:
        model_id = options.model_id or options.profile.checkpoint
        if not model_id or not options.model_revision:
            raise CaptureError(
                expected="--model-id and --model-revision",
                found="neither or one",
                where=str(path),
                remedy="name the published checkpoint and its pinned revision",
            )
        return {"id": model_id, "revision": options.model_revision, "config_sha256": digest}, {}
    document, recipes = found
    if (document["kind"], document["config_sha256"]) != (options.kind, digest):
        raise CaptureError(
            expected=f"kind {document['kind']} with the configuration of its recipe",
            found=f"kind {options.kind}, config {digest[:12]}",
            where=str(path),
            remedy="write the checkpoint again, or pass its kind",
        )
    model = {
        "id": f"seeded/{document['kind']}",
        "revision": "seeded",
        "title": document["title"],
        "config_sha256": digest,
        "seed": document["seed"],
        "recipe": f"{document['generator']}: {document['rule']}",
    }
    gates = {name: recipe.to_json() for name, recipe in recipes.items() if name.endswith(".ffn.gate.weight")}
    return model, gates


def engine_flags(options: Options) -> dict[str, Any]:
    """Keyword arguments of the engine that are the same on every machine (the model's path is not)."""
    limit = {"context_length": options.context_limit} if options.context_limit else {}
    return options.profile.flags | limit | options.engine_flags


def engine_environment(options: Options, hardware: dict[str, Any]) -> dict[str, str]:
    profile = options.profile
    blackwell = profile.blackwell_environment if hardware["compute_capability"].startswith("10.") else {}
    fixed = {"SGLANG_PLUGINS": PLUGIN, "HF_HUB_OFFLINE": "1"} | profile.environment | blackwell
    # Paths belong to the machine, not to the record.
    found = {
        name: value for name, value in os.environ.items() if name.startswith("SGLANG_") and not value.startswith("/")
    }
    return dict(sorted((found | fixed).items()))


def set_environment(options: Options) -> None:
    """For this process and, through inheritance, for the spawned workers."""
    os.environ.update(engine_environment(options, describe_hardware("cuda")))
    os.environ[RUN_VARIABLE] = str(options.run.resolve())
    paths = [str(PLUGIN_FOLDER), str(REPOSITORY / "scripts")]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(paths + ([inherited] if inherited else []))
