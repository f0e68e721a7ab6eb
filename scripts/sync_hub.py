#!/usr/bin/env python3
"""Exchange the dataset with its repository on the Hugging Face Hub: pull tensors, publish, verify.

pull replaces Git LFS pointers of the selected workloads by tensors, each verified by hash, and repairs tensors
that are damaged here (hashes of unchanged files are kept in results/hub/). Into an empty folder it brings
the small files first, those of one revision whole, and later pulls bring those of the then newest revision; a file
edited here stays if the Hub's did not change, and is moved to results/hub/edited/ if it did. The small files of a
git clone are left to git. publish sends what the Hub lacks, tensors first and records last; it deletes nothing
there without --delete. verify compares every file with the Hub's listing. All three resume: run the same command
again. The network needs the extra `hub` (huggingface_hub), --dry-run does not (but for --delete); a private
repository needs a token (HF_TOKEN, or `hf auth login`).
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from inference_kernels.cli import positive, print_json, progress, run_main
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.hub import publish as hub_publish
from inference_kernels.hub import pull as hub_pull
from inference_kernels.hub import revision
from inference_kernels.hub.client import DEFAULT_REPOSITORY, check_repository
from inference_kernels.hub.selection import PullSelection
from inference_kernels.hub.state import HashCache


def main() -> int:
    options = parser().parse_args()
    check_repository(options.repository)
    return {"pull": pull, "publish": publish, "verify": verify}[options.action](options)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", type=Path, default=REPOSITORY, help="dataset root (default: this repository)")
    common.add_argument(
        "--repository",
        default=DEFAULT_REPOSITORY,
        metavar="OWNER/NAME",
        help=f"dataset repository on the Hub (default: {DEFAULT_REPOSITORY})",
    )
    common.add_argument(
        "--jobs",
        type=positive,
        default=os.cpu_count(),
        metavar="N",
        help="files fetched or hashed at a time (default: one per core)",
    )
    common.add_argument(
        "--attempts", type=positive, default=8, metavar="N", help="tries per step while the Hub is busy (default: 8)"
    )
    common.add_argument(
        "--batch-seconds",
        type=positive,
        default=600,
        metavar="N",
        help="time limit of a batch, plus one second per MB (default: 600)",
    )
    actions = result.add_subparsers(dest="action", required=True, metavar="{pull,publish,verify}")
    add_pull(actions.add_parser("pull", parents=[common], help="fetch tensors (and into an empty folder, records)"))
    add_publish(actions.add_parser("publish", parents=[common], help="send what the Hub lacks"))
    checked = actions.add_parser("verify", parents=[common], help="compare the checkout with the Hub by hash")
    checked.add_argument("--revision", default="main", help="branch, tag or commit (default: main)")
    checked.add_argument("--dry-run", action="store_true", help="count what would be compared; no network")
    return result


def add_pull(action: argparse.ArgumentParser) -> None:
    action.add_argument("--revision", default="main", help="branch, tag or commit (default: main)")
    action.add_argument(
        "--definition",
        action="append",
        default=[],
        metavar="NAME",
        help="workloads of this definition only; may be repeated",
    )
    action.add_argument(
        "--class",
        action="append",
        default=[],
        dest="classes",
        metavar="CLASS",
        help="workloads of this class only: published, contest or seeded; may be repeated",
    )
    action.add_argument(
        "--workload", action="append", default=[], metavar="UUID", help="this workload only; may be repeated"
    )
    action.add_argument(
        "--max-bytes",
        type=positive,
        metavar="N",
        help="fetch whole workloads up to N bytes, smallest first, definitions interleaved",
    )
    action.add_argument(
        "--verify-all", action="store_true", help="hash every selected tensor again, also those known to be unchanged"
    )
    action.add_argument("--dry-run", action="store_true", help="plan from local records and files; no network")


def add_publish(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--batch-files",
        type=int,
        choices=range(1, 101),
        default=100,
        metavar="N",
        help="files in one commit at most, 1 to 100 (default: 100)",
    )
    action.add_argument(
        "--batch-bytes",
        type=positive,
        default=5 * 10**9,
        metavar="N",
        help="bytes in one commit at most; a larger file goes alone (default: 5 GB)",
    )
    action.add_argument(
        "--card",
        type=Path,
        metavar="FILE",
        help="also write the dataset card, which is published as README.md, to FILE",
    )
    action.add_argument(
        "--delete",
        action="store_true",
        help="also remove from the Hub what this checkout no longer has; with --dry-run, list it (needs the network)",
    )
    action.add_argument(
        "--yes", action="store_true", help="with --delete: remove even more than a quarter of the Hub's files"
    )
    action.add_argument("--dry-run", action="store_true", help="plan the batches and check limits; no network")


def pull(options: argparse.Namespace) -> int:
    from inference_kernels.core.definitions import require_dataset

    selection = PullSelection(
        tuple(options.definition), tuple(options.classes), tuple(options.workload), options.max_bytes
    )
    hashes = HashCache(options.root, tell, ignore=options.verify_all, keep=not options.dry_run)
    state, patience = hub_pull.Checkout(options.root, None, hashes=hashes), waits(options)
    if options.dry_run:
        require_dataset(options.root)
        chosen, fetches = hub_pull.plan_tensors(state, selection, options.jobs)
        return finish(state.findings, {"dry_run": True} | hub_pull.summary(state, chosen, fetches))
    reader = hub_pull.open_reader(options.repository)
    commit, state.remote = hub_publish.listing(reader, options.revision, patience, tell)
    records = pull_records(reader, commit, state, options)
    chosen, fetches = hub_pull.plan_tensors(state, selection, options.jobs)
    hub_pull.check_space(options.root, fetches)
    pointers = hub_pull.write_pointers(state)
    done = fetch(reader, commit, state, fetches, options)
    repaired = len(state.damaged & {text for item in done for text in item.targets})
    return finish(
        state.findings,
        {"commit": commit}
        | records
        | {"pointers_written": pointers, "tensors_fetched": len(done), "repaired": repaired}
        | hub_pull.summary(state, chosen, fetches),
    )


def pull_records(reader: Any, commit: str, state: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Stage what the revision's small files need, then move them together; WrongBytes if one did not arrive."""
    base = revision.read_revision(options.root, tell)
    moves, fetches = hub_pull.plan_records(state, base)
    hub_pull.check_space(options.root, fetches)
    done = fetch(reader, commit, state, fetches, options)
    if len(done) < len(fetches):
        hub_pull.refuse_part(state.findings)
    if revision.follows(options.root, base):
        new = revision.arrived(options.repository, commit, state.remote)
        revision.apply(options.root, base, new, moves, state.findings)
        base = new
    return {"records_commit": base.commit, "records_fetched": len(done), "records_changed": len(moves)}


def fetch(reader: Any, commit: str, state: Any, fetches: list, options: argparse.Namespace) -> list[Any]:
    done = hub_pull.fetch_all(reader, commit, state, fetches, waits(options), tell, options.jobs)
    return list(progress(done, len(fetches), "pull"))


def publish(options: argparse.Namespace) -> int:
    from inference_kernels.core import files
    from inference_kernels.hub import files as hub_files

    if not options.dry_run:
        writer = hub_publish.open_writer(options.repository)
    found = hub_publish.publishable(options.root, options.repository)
    for error in hub_files.damaged(found, options.jobs):
        raise error
    if options.card:
        files.write_bytes(options.card, next(item.source for item in found if item.path == hub_files.CARD))
    limits = options.batch_files, options.batch_bytes
    reader, remote, patience = None, None, waits(options)
    if options.delete or not options.dry_run:
        reader = hub_pull.open_reader(options.repository)
        _, remote = hub_publish.listing(reader, "main", patience, tell)
    plan = hub_publish.make_plan(found, remote, *limits, options.delete)
    if options.dry_run:
        for batch in plan.batches:
            print(batch.describe())
        return finish(plan.findings, {"dry_run": True} | plan.summary())
    if not options.yes:
        hub_publish.check_deletions(plan)
    if not plan.findings.count("error"):
        hub_publish.send(plan, writer, hub_publish.Ledger(options.root, options.repository, tell), patience, tell)
        _, remote = hub_publish.listing(reader, "main", patience, tell)
        hub_files.compare(found, remote, plan.findings)
    return finish(plan.findings, plan.summary())


def verify(options: argparse.Namespace) -> int:
    from inference_kernels.core.findings import Findings
    from inference_kernels.hub import files as hub_files

    found, findings = hub_publish.publishable(options.root, options.repository), Findings()
    result: dict[str, Any] = {"files": len(found), "bytes": sum(item.size for item in found)}
    if options.dry_run:
        return finish(findings, {"dry_run": True} | result)
    reader = hub_pull.open_reader(options.repository)
    commit, remote = hub_publish.listing(reader, options.revision, waits(options), tell)
    hub_files.verify(found, remote, options.jobs, findings)
    strays = len(hub_files.strays(found, remote))
    return finish(findings, result | {"commit": commit, "on_the_hub": len(remote), "strays": strays})


def waits(options: argparse.Namespace) -> Any:
    from inference_kernels.hub.retry import Patience

    return Patience(attempts=options.attempts, batch_s=options.batch_seconds)


def tell(message: str) -> None:
    print(message, file=sys.stderr)


def finish(findings: Any, result: dict[str, Any]) -> int:
    """Findings one a line, then the JSON line; 1 if there are errors."""
    for finding in findings.items:
        print(finding.line())
    print_json(result | {"errors": findings.count("error"), "warnings": findings.count("warning")})
    return 1 if findings.count("error") else 0


if __name__ == "__main__":
    run_main(main)
