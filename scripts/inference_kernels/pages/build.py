"""All generated documents: a page per definition, the marked blocks of README.md, the pages of the other modules.

A definition's page is made of its JSON and reference, its task, its workloads and capture records, and the
hand-written notes in docs/notes/<op_type>.md (engine boundary, architectures, open doubts).
"""

import ast
import re
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import definition_files, read_definition, var_axes
from inference_kernels.core.errors import PackError
from inference_kernels.core.files import read_text
from inference_kernels.core.records import CLASSES, PUBLISHED_TARGET, captures_by_definition, read_workloads
from inference_kernels.core.tasks import Task, read_task
from inference_kernels.core.types import CaptureRecord, Definition
from inference_kernels.pages import baselines, captures, cli, gdn_numerics, hostile, judge, licences, performance
from inference_kernels.pages.discrimination import read_summary
from inference_kernels.pages.generated import differences, write_generated
from inference_kernels.pages.markdown import table

REMEDY = "run: python scripts/build_docs.py"
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def expected_documents(root: Path) -> dict[Path, bytes]:
    """Generate every document: path -> content."""
    records = captures_by_definition(root)
    definitions = [read_definition(path) for path in definition_files(root)]
    documents = {
        root / "docs" / "definitions" / f"{definition['name']}.md": definition_page(
            root, definition, records.get(definition["name"], [])
        )
        for definition in definitions
    }
    readme = root / "README.md"
    rows = baselines.read_rows(root)
    blocks = {
        "counts": counts_block(records),
        "definitions": definitions_block(definitions, records),
        "baselines": table(baselines.OVERVIEW, baselines.overview(rows)),
    }
    documents[readme] = fill_blocks(read_text(readme), blocks, readme)
    if (root / hostile.CORPUS).exists():
        documents[root / hostile.PAGE] = hostile.hostile_page(root)
    if rows:
        documents[root / baselines.PAGE] = baselines.page(root, rows)
    if (root / judge.SUMMARY).exists():
        documents[root / judge.PAGE] = judge.judge_page(root)
    if (root / licences.WORKS).exists():
        documents |= licence_documents(root)
    if (root / "scripts").is_dir():
        documents[root / cli.PAGE] = cli.cli_page(root)
    if (root / captures.FOLDER).is_dir():
        documents[root / captures.PAGE] = captures.captures_page(root)
    if (root / performance.SUMMARY).exists():
        documents[root / performance.PAGE] = performance.performance_page(root)
    if (root / gdn_numerics.SUMMARY).exists():
        documents[root / gdn_numerics.PAGE] = gdn_numerics.numerics_page(root)
    return {path: text.encode() for path, text in documents.items()}


def fill_blocks(text: str, blocks: dict[str, str], path: Path) -> str:
    """Replace the content of every marked block; PackError for a block that is not among `blocks`."""

    def content(match: re.Match[str]) -> str:
        if match[2] not in blocks:
            raise PackError(
                expected=f"a block of {sorted(blocks)}", found=match[2], where=str(path), remedy="correct the marker"
            )
        return f"{match[1]}{blocks[match[2]]}\n{match[3]}"

    return BLOCK.sub(content, text)


def counts_block(records: dict[str, list[CaptureRecord]]) -> str:
    every = [record for group in records.values() for record in group]
    counts = {name: sum(record["class"] == name for record in every) for name in CLASSES}
    total = f"{PUBLISHED_TARGET:,} in all"
    targets = {"published": f"{total}, 154 of them contest", "contest": "154", "seeded": "-"}
    rows = [[f"`{name}`", counts[name], targets[name]] for name in CLASSES]
    return table(["class", "workloads here", "target"], rows)


def definitions_block(definitions: list[Definition], records: dict[str, list[CaptureRecord]]) -> str:
    rows = []
    for definition in definitions:
        name = definition["name"]
        counts = [sum(record["class"] == kind for record in records.get(name, [])) for kind in CLASSES]
        rows.append([f"[`{name}`](docs/definitions/{name}.md)", ", ".join(var_axes(definition)), *counts])
    return table(["definition", "variable axes", *CLASSES], rows)


def licence_documents(root: Path) -> dict[Path, str]:
    """Generate the pages of licenses/; SchemaError for a name that no work has."""
    for error in licences.missing_works(root):
        raise error
    page, works = root / licences.PAGE, licences.read_works(root)
    blocks = {
        "works": table(
            ["work", "kind", "version", "what it is to this repository", "licence", "read in", "notice"],
            licences.work_rows(works),
        ),
        "files": table(["files", "terms", "works"], licences.file_rows(root, works)),
    }
    packages = table(
        ["package", "version", "licence as stated", "field"],
        [list(row.values()) for row in licences.read_packages(root)],
    )
    return {
        page: fill_blocks(read_text(page), blocks, page),
        root / licences.PACKAGES_PAGE: f"# Packages\n\n{licences.PACKAGES_INTRODUCTION}\n{packages}\n",
    }


def definition_page(root: Path, definition: Definition, records: list[CaptureRecord]) -> str:
    """Write the page of one definition, as Markdown."""
    name = definition["name"]
    task = read_task(root, name)
    notes = root / "docs" / "notes" / f"{definition['op_type']}.md"
    parts = [
        f"# {name}",
        f"Generated by `python scripts/build_docs.py`; operator family `{definition['op_type']}`.",
        definition["description"],
        "Tags: " + ", ".join(f"`{tag}`" for tag in definition["tags"]),
        "## Contract",
        contract(definition),
        "## Reference",
        reference_text(definition),
        "## Acceptance",
        acceptance(task),
        "## Captured workloads",
        f"![Workloads by exact shape](../figures/shapes/{name}.svg)",
        workloads_text(root, definition, records),
    ]
    measured = read_summary(root).get(name)
    if measured:
        parts += ["## What the tolerance cannot tell apart", discrimination_text(measured)]
    if notes.exists():
        parts += ["## Boundary, architectures, open doubts", read_text(notes).strip()]
    return "\n\n".join(parts) + "\n"


def contract(definition: Definition) -> str:
    axes = [
        [f"`{name}`", axis.get("value", "variable"), axis["description"]] for name, axis in definition["axes"].items()
    ]
    tensors = [
        [
            f"`{name}`",
            kind,
            "scalar" if spec["shape"] is None else f"[{', '.join(spec['shape'])}]",
            spec["dtype"],
            spec["description"],
        ]
        for kind, group in (("input", definition["inputs"]), ("output", definition["outputs"]))
        for name, spec in group.items()
    ]
    rules = ", ".join(f"`{rule}`" for rule in definition.get("constraints") or []) or "none"
    tables = table(["axis", "size", "meaning"], axes), table(["tensor", "role", "shape", "dtype", "meaning"], tensors)
    return "\n\n".join([*tables, f"Constraints: {rules}"])


def reference_text(definition: Definition) -> str:
    """Show the docstring of the reference, and link its source."""
    docstring = ast.get_docstring(ast.parse(definition["reference"])) or ""
    source = f"definitions/{definition['op_type']}/{definition['name']}.py"
    return f"Source: [`{source}`](../../{source})\n\n```text\n{docstring}\n```"


def acceptance(task: Task) -> str:
    tolerance, ratio = task.tolerance, task.tolerance.required_matched_ratio
    share = "every element" if ratio is None else f"a share of {ratio} of the elements"
    return (
        f"Floating outputs: atol {tolerance.atol}, rtol {tolerance.rtol}, rule `{tolerance.comparison}`, {share}; "
        f"integer outputs exactly. Timed: {task.timing['timed']}; baseline `{task.baseline}`; "
        f"grouped by `{task.group_axis}`; {len(task.dev)} dev workloads."
    )


def workloads_text(root: Path, definition: Definition, records: list[CaptureRecord]) -> str:
    if not records:
        return "None in this repository yet."
    axes = {workload["uuid"]: workload["axes"] for workload in read_workloads(root, definition)}
    rows = [_workload_row(record, axes[record["workload"]]) for record in records]
    paths = sorted({record["operation"]["call_path"] for record in records})
    adaptations = sorted({_general(item) for record in records for item in record["adaptations"]})
    text = table(["workload", "class", "axes", "request", "layer", "step", "max abs error", "tolerance used"], rows)
    text += "\n\nEngine call: " + "; ".join(f"`{path}`" for path in paths)
    if adaptations:
        text += "\n\nAdaptations recorded:\n\n" + "\n".join(f"- {item}" for item in adaptations)
    return text


def discrimination_text(measured: dict[str, Any]) -> str:
    """Describe the wrong answers tried on the task's workloads, from the summary of scripts/check_tasks.py."""
    used = ", ".join(f"{count} {kind}" for kind, count in measured["workloads"].items())
    rows = [
        [
            item["trick"],
            f"{item['told_apart']} of {item['workloads']}",
            _shares(item["share"]),
            ", ".join(f"`{name}`" for name in item["passing_alone"]) or "-",
        ]
        for item in measured["tricks"]
    ]
    text = (
        f"Wrong answers judged by this task on its workloads ({used}; {measured['skipped']} skipped). "
        "The shares are the largest of matching elements, rounded down.\n\n"
    )
    text += table(["wrong answer", "told apart", "share that matches", "outputs that pass alone"], rows)
    missed = [
        f"- {item['trick']}, workload `{item['workload']}`: {_shares(item['share'])}"
        + (f" ({item['note']})" if item["note"] else "")
        for item in measured["not_told_apart"]
    ]
    return text + "\n\n" + ("Not told apart:\n\n" + "\n".join(missed) if missed else "Every one of them is told apart.")


def _shares(shares: dict[str, float | None]) -> str:
    return ", ".join(f"`{name}` " + ("-" if share is None else f"{share:.3f}") for name, share in shares.items())


def _workload_row(record: CaptureRecord, axes: dict[str, int]) -> list[Any]:
    errors = [item for item in record["replay"]["errors"].values() if item["max_abs_error"] is not None]
    worst = [
        format(max((item[key] for item in errors), default=0.0), form) if record["outputs"] else "-"
        for key, form in (("max_abs_error", ".3g"), ("tolerance_used", ".1%"))
    ]
    shape = ", ".join(f"{axis}={size}" for axis, size in axes.items())
    step = record["operation"]["step"]
    return [
        f"`{record['workload']}`",
        record["class"],
        shape,
        record["request"]["case"],
        record["operation"]["layer"],
        "-" if step is None else step,
        *worst,
    ]


def _general(adaptation: str) -> str:
    """Strip an adaptation of its numbers, so that those of many workloads become one line."""
    return re.sub(r"\[[\d, ]+\]", "[...]", re.sub(r"\b\d+\b", "#", adaptation))


def write_documents(root: Path) -> list[Path]:
    """Write the documents that differ and delete pages of unknown definitions; return the changed paths."""
    documents = expected_documents(root)
    return write_generated(documents, _stale(root, documents))


def document_differences(root: Path) -> list[PackError]:
    """Report each document that differs from its generated text, and each page of an unknown definition."""
    documents = expected_documents(root)
    return differences(documents, root, REMEDY, _stale(root, documents))


def _stale(root: Path, documents: dict[Path, bytes]) -> list[Path]:
    return sorted(set((root / "docs" / "definitions").glob("*.md")) - set(documents))
