"""Identify a trace file and select from it the content of agentx_shapes.json."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.agentx import published as known
from inference_kernels.agentx.blocks import TraceError
from inference_kernels.agentx.population import Trace, figures
from inference_kernels.agentx.published import selection_entry, trace_entry
from inference_kernels.agentx.select import select_cases
from inference_kernels.agentx.trace import Session, nested_times_are_relative, read_sessions
from inference_kernels.core.hashing import sha256_file

Progress = Callable[[Iterable[Session], int | None, str, str], Iterator[Session]]


@dataclass(frozen=True)
class Corpus:
    """A trace file, its name and revision. pinned: its bytes are those of the published trace."""

    path: Path
    dataset: str
    revision: str
    bytes: int
    sha256: str
    pinned: bool


@dataclass(frozen=True)
class SelectedCases:
    """What was selected. empty: cases that no request fits. differences: published figures that were not found."""

    shapes: dict[str, Any]
    empty: list[str]
    differences: list[str]


def identify(path: Path, dataset: str | None, revision: str | None) -> Corpus:
    """Check a file's size and SHA-256 against the pinned trace. TraceError unless another file is named as such."""
    size = path.stat().st_size
    if revision is None and size != known.BYTES:
        raise _another(path, f"{known.BYTES:,} bytes", f"{size:,}")
    digest = sha256_file(path)
    if digest == known.SHA256:
        if (dataset or known.DATASET, revision or known.REVISION) != (known.DATASET, known.REVISION):
            raise TraceError(
                expected=f"{known.DATASET} at {known.REVISION}, whose SHA-256 this file has",
                found=f"{dataset} at {revision}",
                where=str(path),
                remedy="leave --dataset and --trace-revision out",
            )
        return Corpus(path, known.DATASET, known.REVISION, size, digest, True)
    if revision is None:
        raise _another(path, f"SHA-256 {known.SHA256}", digest)
    if dataset in (None, known.DATASET) or revision == known.REVISION:
        raise TraceError(
            expected="the name and the revision of another trace than the pinned one",
            found=f"{dataset} at {revision}",
            where=str(path),
            remedy="give them with --dataset and --trace-revision",
        )
    return Corpus(path, dataset, revision, size, digest, False)


def select_from(corpus: Corpus, progress: Progress) -> SelectedCases:
    """Read the trace and choose its cases; the result depends on the file's bytes and name only."""
    relative = not corpus.pinned and nested_times_are_relative(corpus.path)
    total = known.POPULATION["sessions"] if corpus.pinned else None
    trace = Trace(tuple(progress(read_sessions(corpus.path, relative), total, "reading", "session")))
    if corpus.pinned:
        _check_assumptions(trace, corpus.path)
    entries, statistic, empty = select_cases(trace, corpus.pinned)
    population = figures(trace)
    file, licence = (known.FILE, known.LICENCE) if corpus.pinned else (corpus.path.name, None)
    shapes = {
        "schema_version": 1,
        "population": population,
        "cases": entries,
        "trace": trace_entry(
            corpus.dataset, corpus.revision, file, corpus.bytes, corpus.sha256, licence, available=True
        ),
        "selection": selection_entry(statistic, "relative" if relative else "absolute"),
    }
    differences = [
        f"{name}: published {value}, found {population[name]}"
        for name, value in known.POPULATION.items()
        if corpus.pinned and population[name] != value
    ]
    return SelectedCases(shapes, empty, differences)


def _check_assumptions(trace: Trace, path: Path) -> None:
    """Check what the rules assume of the pinned trace."""
    names = [session.ident for session in trace.sessions]
    assumed = [
        (names == sorted(names), "sessions in the order of their ids"),
        (not any(session.early_nested for session in trace.sessions), "nested times of the session"),
        (all(session.keys == known.KEYS for session in trace.sessions), f"the keys {sorted(known.KEYS)}"),
    ]
    for right, expected in assumed:
        if not right:
            raise TraceError(
                expected=expected,
                found="otherwise",
                where=str(path),
                remedy="correct the rules in agentx/select.py, which assume it",
            )


def _another(path: Path, expected: str, found: str) -> TraceError:
    return TraceError(
        expected=f"{known.FILE} of {known.DATASET}, {expected}",
        found=found,
        where=str(path),
        remedy=f"download revision {known.REVISION}, or name another trace with --dataset and --trace-revision",
    )
