"""Read, check and write `agentx_shapes.json`: the requests that captures of text models replay."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_kernels.agentx import published as known
from inference_kernels.agentx.blocks import Runs, common_prefix, length, shared_matrix
from inference_kernels.agentx.trace import BLOCK_SIZE
from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_object, write_text
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.core.schema import schema_errors

SHAPES = REPOSITORY / "agentx_shapes.json"
REMEDY = "write it again with scripts/select_agentx_requests.py"


@dataclass(frozen=True)
class Request:
    """What a prompt is written from; lengths in tokens.

    session_id: salt of the spans. request_index: place in its session, None if reconstructed. output_tokens:
    None for a reconstructed predecessor.
    """

    session_id: str
    request_index: int | None
    block_runs: Runs
    input_tokens: int
    output_tokens: int | None

    @property
    def blocks(self) -> int:
        """Count the blocks."""
        return length(self.block_runs)


@dataclass(frozen=True)
class ShapeCase:
    """One replay after a cache flush.

    serial: `predecessor`, if any, generating one token, then `requests[0]`. group: all `requests` together.
    kinds: models whose published runs had the case; every kind can run it if its context is long enough.
    """

    name: str
    kinds: tuple[str, ...]
    mode: str
    provenance: str
    requests: tuple[Request, ...]
    predecessor: Request | None
    shared_prefix_blocks: int | None
    trace_revision: str
    published: dict[str, Any] = field(default_factory=dict)

    @property
    def runnable(self) -> bool:
        """Tell whether the case has requests, not published figures only."""
        return bool(self.requests)

    def record_fields(self) -> dict[str, Any]:
        """Return the part of a capture record's `request` that the trace decides."""
        fields = {
            "case": self.name,
            "provenance": self.provenance,
            "trace_revision": self.trace_revision,
            "input_tokens": [request.input_tokens for request in self.requests],
            "output_tokens": [request.output_tokens for request in self.requests],
            "shared_prefix_blocks": self.shared_prefix_blocks,
        }
        return fields | ({"predecessor_tokens": self.predecessor.input_tokens} if self.predecessor else {})


def load_cases(path: Path = SHAPES) -> dict[str, ShapeCase]:
    """Read all cases by name. SchemaError for the first fault of the file."""
    shapes = read_object(path)
    for error in shape_errors(shapes, str(path)):
        raise error
    revision = shapes["trace"]["revision"]
    return {entry["name"]: _case(entry, revision) for entry in shapes["cases"]}


def choose(cases: dict[str, ShapeCase], names: Iterable[str] | None, kind: str) -> list[ShapeCase]:
    """Choose the named cases, or by default the runnable serial ones of `kind`; groups run only by name."""
    if not names:
        return [case for case in cases.values() if case.runnable and case.mode == "serial" and kind in case.kinds]
    chosen = []
    for name in dict.fromkeys(names):
        if name not in cases:
            raise SchemaError(
                expected=f"one of {', '.join(cases)}", found=name, where="case", remedy="correct the name"
            )
        if not cases[name].runnable:
            raise SchemaError(
                expected="a case with block ids",
                found=f"published figures only for {name}",
                where="case",
                remedy="select it from the trace (select_agentx_requests.py)",
            )
        chosen.append(cases[name])
    return chosen


def write_shapes(path: Path, shapes: dict[str, Any]) -> None:
    """Check and write the file; equal content gives equal bytes."""
    for error in shape_errors(shapes, str(path)):
        raise error
    write_text(path, json.dumps(shapes, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def shape_errors(shapes: dict[str, Any], where: str) -> list[SchemaError]:
    """List violations of the schema or, if there are none, of the rules between fields."""
    errors = schema_errors("agentx_shapes", shapes, where)
    if errors:
        return errors
    names = [entry["name"] for entry in shapes["cases"]]
    faults = [f"two cases {name}" for name in sorted({name for name in names if names.count(name) > 1})]
    available = shapes["trace"]["content_available"]
    whole = shapes["trace"]["sha256"] == known.SHA256
    for entry in shapes["cases"]:
        faults += [f"case {entry['name']}: {fault}" for fault in _case_faults(entry, available, whole)]
    return [
        SchemaError(expected="a consistent list of cases", found=fault, where=where, remedy=REMEDY) for fault in faults
    ]


def _case_faults(entry: dict[str, Any], available: bool, whole: bool) -> list[str]:
    requests, predecessor, shared = entry["requests"], entry["predecessor"], entry["shared_prefix_blocks"]
    recorded, runs = entry["provenance"] == "recorded", entry["provenance"] != "published_figures"
    everyone = [*requests, predecessor] if predecessor else requests
    faults = ["recorded, but no row of the trace was read"] if recorded and not available else []
    if not recorded and available:
        faults.append("not recorded, although the trace was read")
    if bool(requests) != runs or runs and entry["mode"] == "serial" and len(requests) != 1:
        faults.append(f"{len(requests)} requests in a {entry['mode']} case, {entry['provenance']}")
    if len({request["session_id"] for request in everyone}) > 1:
        faults.append("requests of several sessions")
    for request in everyone:
        faults += _request_faults(request, whole)
    if not runs or faults:
        return faults
    if entry["mode"] == "group":
        matrix = shared_matrix([_runs(request) for request in requests])
        return ["group_shared_prefix_blocks differ from the block ids"] * (
            entry.get("group_shared_prefix_blocks") != matrix or predecessor is not None
        )
    found = common_prefix(_runs(predecessor), _runs(requests[0])) if predecessor else 0
    return [] if shared == found else [f"shared_prefix_blocks {shared}, block ids share {found}"]


def _request_faults(request: dict[str, Any], whole: bool) -> list[str]:
    runs = _runs(request)
    spans = sorted(runs)
    if any(first + count > after for (first, count), (after, _) in zip(spans, spans[1:])):
        return ["a block twice in one request"]
    if any(first + count == after for (first, count), (after, _) in zip(runs, runs[1:])):
        return ["runs that continue each other"]
    if length(runs) != request["blocks"]:
        return [f"{request['blocks']} blocks, but {length(runs)} block ids"]
    if whole and request["input_tokens"] != BLOCK_SIZE * request["blocks"]:
        return [f"{request['input_tokens']} tokens in {request['blocks']} blocks of {BLOCK_SIZE}"]
    return []


def _runs(request: dict[str, Any]) -> Runs:
    return tuple((first, count) for first, count in request["hash_runs"])


def _request(entry: dict[str, Any]) -> Request:
    return Request(
        entry["session_id"], entry["request_index"], _runs(entry), entry["input_tokens"], entry["output_tokens"]
    )


def _case(entry: dict[str, Any], revision: str) -> ShapeCase:
    predecessor = entry["predecessor"]
    return ShapeCase(
        entry["name"],
        tuple(entry["kinds"]),
        entry["mode"],
        entry["provenance"],
        tuple(_request(request) for request in entry["requests"]),
        _request(predecessor) if predecessor else None,
        entry["shared_prefix_blocks"],
        revision,
        entry["published"],
    )
