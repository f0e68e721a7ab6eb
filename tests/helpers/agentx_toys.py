"""Weka sessions for tests: real ones, small made-up ones, and a slow reading of them that shares no code."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

WEKA = Path(__file__).parents[1] / "data" / "weka"
# Whether nested times count from their marker.
REAL = {"trace_0026": False, "trace_0277": True, "trace_0549_last_three": False}


def request(blocks: list[int], t: float = 0.0, out: int = 10, api_time: float | None = 1.0) -> dict:
    item = {"type": "n", "t": t, "model": "m", "in": 64 * len(blocks), "out": out, "hash_ids": blocks}
    return item | ({} if api_time is None else {"api_time": api_time})


def marker(t: float, requests: list[dict]) -> dict:
    return {"type": "subagent", "t": t, "agent_id": "a", "models": ["m"], "requests": requests}


def session(ident: str, requests: list[dict], **other: Any) -> dict:
    return {"id": ident, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": requests} | other


def write_lines(path: Path, sessions: list[dict]) -> Path:
    path.write_text("".join(json.dumps(item, separators=(",", ":")) + "\n" for item in sessions))
    return path


def real_sessions() -> list[dict]:
    return [json.loads((WEKA / f"{name}.json").read_bytes()) for name in REAL]


def slow_reading(content: dict, relative: bool) -> list[dict]:
    """List requests in flat order by the plain rule: a dictionary of owners, every block compared."""
    rows = []
    for outer, item in enumerate(content["requests"]):
        nested = item["type"] == "subagent"
        for inner, entry in enumerate(item["requests"] if nested else [item]):
            start = entry["t"] + (item["t"] if nested and relative else 0.0)
            rows.append(
                {
                    "outer": outer,
                    "inner": inner if nested else -1,
                    "start": start,
                    "end": start + max(entry.get("api_time") or 0.0, 0.0),
                    "ids": entry["hash_ids"],
                    "input_tokens": entry["in"],
                    "output_tokens": entry["out"],
                }
            )
    owner: dict[int, int] = {}
    for index in sorted(range(len(rows)), key=lambda index: (rows[index]["start"], index)):
        row = rows[index]
        known = [place for place, ident in enumerate(row["ids"]) if ident in owner]
        row["shared"] = max(known) + 1 if known else 0
        row["predecessor"] = owner[row["ids"][row["shared"] - 1]] if known else None
        owner |= dict.fromkeys(row["ids"], index)
        steps = groupby(enumerate(row.pop("ids")), key=lambda pair: pair[1] - pair[0])
        runs = [[ident for _, ident in group] for _, group in steps]
        row["runs"] = tuple((run[0], len(run)) for run in runs)
    return rows
