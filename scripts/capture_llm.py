#!/usr/bin/env python3
"""Capture operator calls of a real SGLang run of a language model on a GPU: serve the cases, then validate.

Runs in the engine's environment. The same command resumes an interrupted run. The engine's output goes to
`engine.log` beside --output-root.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inference_kernels.cli import print_json, run_main
from inference_kernels.engine.agentx import require_cases, served_profile
from inference_kernels.engine.llm import capture, serve
from inference_kernels.engine.llm_settings import LlmOptions
from inference_kernels.models.registry import LANGUAGE_KINDS, PROFILE_NAMES


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--kind", required=True, choices=LANGUAGE_KINDS, help="architecture")
    add("--model-path", required=True, type=Path, metavar="DIR", help="checkpoint")
    add("--output-root", required=True, type=Path, metavar="RUN", help="new folder, or the run to resume")
    add("--case", action="append", metavar="NAME", help="requests to send; repeatable (default: see the profile)")
    add("--profile", default="seeded", choices=PROFILE_NAMES, help="flags, layers and cases (default: seeded)")
    add("--max-output-tokens", type=int, metavar="N", help="cap the output of every request, for a quick check")
    add("--context-limit", type=int, metavar="N", help="context length of the engine (default: the profile's)")
    add(
        "--engine-flag",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="override a flag of sglang.Engine; repeatable, recorded",
    )
    add("--model-id", help="of a published checkpoint (default: the one that the profile names)")
    add("--model-revision", help="of a published checkpoint")
    add("--only-serve", action="store_true", help="serve the cases and leave the run to be validated")
    return result


def options(arguments: argparse.Namespace, refuse) -> LlmOptions:
    """Check the arguments against the profile; `refuse(message)` ends the program."""
    profile = served_profile(arguments.kind, arguments.profile, arguments.max_output_tokens)
    cases = profile.cases
    if profile.phases:
        require_cases(arguments.kind, arguments.case or [])
    for name in arguments.case or []:
        if name not in cases:
            refuse(f"--case {name!r}: choose from {', '.join(cases) or 'none'}")
    chosen = arguments.case or [name for name, case in cases.items() if case.default]
    if not chosen:
        refuse(
            f"profile {arguments.profile} of {arguments.kind} has no cases: its workloads "
            f"come from import_mlsys26_gdn.py"
        )
    for name in ("max_output_tokens", "context_limit"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            refuse(f"--{name.replace('_', '-')} must be >= 1")
    return LlmOptions(
        kind=arguments.kind,
        model_path=arguments.model_path,
        run=arguments.output_root,
        cases=[name for name in cases if name in chosen],
        profile_name=arguments.profile,
        max_output_tokens=arguments.max_output_tokens,
        context_limit=arguments.context_limit,
        engine_flags=dict(engine_flag(text, refuse) for text in arguments.engine_flag),
        model_id=arguments.model_id,
        model_revision=arguments.model_revision,
    )


def engine_flag(text: str, refuse) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        refuse(f"--engine-flag {text!r}: write NAME=JSON, such as max_running_requests=4 or name='\"text\"'")
        raise


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    command = parser()
    arguments = command.parse_args()
    chosen = options(arguments, command.error)
    if arguments.only_serve:
        serve(chosen, report)
        return 0
    print_json(capture(chosen, [sys.executable, *sys.argv, "--only-serve"], report))
    return 0


if __name__ == "__main__":
    run_main(main)
