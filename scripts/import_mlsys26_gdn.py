#!/usr/bin/env python3
"""Import the 154 gated delta workloads of the MLSys 2026 FlashInfer contest, class `contest`.

They come from the Hub at a pinned commit, or from a copy of the dataset (--source). Their tensors are split
into one file each, the reference is run on every workload, and the ordinary importer takes the result. If the
command is stopped, run it again: it resumes. A workload on which the reference fails is left out, and the exit
code is then 1.
"""

import argparse
from pathlib import Path
from typing import Any

from inference_kernels.cli import print_json, print_table, progress, run_main
from inference_kernels.contest import source as contest_source
from inference_kernels.core.layout import REPOSITORY

COLUMNS = ["definition", "workloads", "expected", "bytes", "zero state", "inputs left out"]
UNPINNED = "not stated: a local copy"


def main() -> int:
    options = parser().parse_args()
    revision = options.revision or (UNPINNED if options.source else contest_source.REVISION)
    tree = options.source or options.work_directory / f"dataset-{revision}"
    if not options.source:
        contest_source.require_commit(revision)
        if options.dry_run:
            print_json(
                {
                    "dry_run": True,
                    "dataset": contest_source.DATASET,
                    "revision": revision,
                    "files": contest_source.PATTERNS,
                    "folder": str(tree),
                }
            )
            return 0
        contest_source.download(revision, tree)
    sources = contest_source.read_tree(tree, options.output_root)
    print_table(source_rows(sources, contest_source.EXPECTED), COLUMNS)
    if options.dry_run:
        print_json(
            {
                "dry_run": True,
                "revision": revision,
                "workloads": len(sources),
                "bytes": sum(source.tensor_bytes for source in sources),
            }
        )
        return 0
    return convert_and_import(options, tree, revision, sources)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument(
        "--source",
        type=Path,
        metavar="FOLDER",
        help="a copy of the dataset: a clone, a download or a snapshot of the Hub's cache",
    )
    result.add_argument(
        "--revision",
        metavar="COMMIT",
        help="commit to download (default: the pinned one); with --source, what the copy is",
    )
    result.add_argument(
        "--output-root",
        type=Path,
        default=Path("."),
        metavar="ROOT",
        help="dataset that receives the workloads; must hold the definitions (default: .)",
    )
    result.add_argument(
        "--store",
        choices=("workloads", "starter"),
        default="workloads",
        help="where tensors go: blob/workloads (Git LFS) or blob/starter (plain git, small)",
    )
    result.add_argument("--device", default="cpu", help="device that runs the references (default: cpu)")
    result.add_argument(
        "--work-directory",
        type=Path,
        metavar="DIR",
        default=REPOSITORY / "results" / "contest",
        help="holds the download and the converted run (default: results/contest)",
    )
    result.add_argument("--json", type=Path, metavar="FILE", help="write what became of every workload to FILE")
    result.add_argument("--dry-run", action="store_true", help="check the source, say what would be imported")
    return result


def source_rows(sources: list[Any], expected: dict[str, int]) -> list[dict[str, Any]]:
    """Make one row per definition."""
    rows = []
    for name, count in expected.items():
        mine = [source for source in sources if source.definition["name"] == name]
        dropped = sorted({item for source in mine for item in source.dropped})
        rows.append(
            {
                "definition": name,
                "workloads": len(mine),
                "expected": count,
                "bytes": sum(source.tensor_bytes for source in mine),
                "zero state": sum(bool(source.zeros) for source in mine),
                "inputs left out": ", ".join(dropped) or "-",
            }
        )
    return rows


def convert_and_import(options: argparse.Namespace, tree: Path, revision: str, sources: list[Any]) -> int:
    """Convert the workloads into a run and import it; return the exit code."""
    from inference_kernels.capture import importer
    from inference_kernels.capture.run import RunFolder
    from inference_kernels.contest import convert
    from inference_kernels.contest.source import EXPECTED, workload_digests
    from inference_kernels.core import files
    from inference_kernels.core.replay import require_device

    require_device(options.device)
    settings = convert.run_settings(
        options.output_root, revision, workload_digests(tree, options.output_root), list(EXPECTED)
    )
    folder = options.work_directory / convert.run_name(settings)
    run = RunFolder.open(folder, settings)
    converted = convert.convert(sources, tree, run, options.device)
    conversions = list(progress(converted, len(sources), "convert", "workload"))
    if options.json:
        files.write_json(options.json, [item.__dict__ for item in conversions])
    failed = [item for item in conversions if item.status == "failed"]
    for item in failed:
        print(f"left out: {item.reason}")
    calls = importer.read_run(folder, options.output_root)
    importer.prepare_root(options.output_root)
    places = importer.plan_copies(calls, options.output_root, options.store)
    importer.check_starter_limits(places, folder, options.output_root)
    copied = sum(progress(importer.copy_tensors(folder, options.output_root, places), len(places), "import"))
    new = importer.merge_records(options.output_root, calls, places)
    print_json(
        {
            "revision": revision,
            "source_workloads": len(sources),
            "failed": len(failed),
            "workloads": len(calls),
            "new_workloads": new,
            "tensors": len(places),
            "new_tensors": copied,
        }
    )
    return 1 if failed else 0


if __name__ == "__main__":
    run_main(main)
