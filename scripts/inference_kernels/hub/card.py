"""The dataset card: README.md with the front matter that the Hub reads, which is generated anew.

Keys and values: https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
"""

import re
from collections.abc import Iterable
from pathlib import Path

from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_text
from inference_kernels.core.records import CLASSES
from inference_kernels.hub.files import CARD

FENCE = "---\n"
SITE = "https://huggingface.co/datasets"
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))
# A key's values: None for free text, else the pattern of each.
KEYS = {
    "pretty_name": None,
    "license": r"apache-2\.0|other",
    "license_name": r"[a-z0-9.-]+",
    "license_link": r"https://\S+|LICENSE(\.md)?",
    "annotations_creators": "machine-generated",
    "source_datasets": "original|extended",
    "task_categories": "other",
    "tags": r"[a-z0-9.-]+",
    "size_categories": "|".join(re.escape(name) for _, name in SIZES),
    "viewer": "true|false",
}
LISTS = ("annotations_creators", "source_datasets", "task_categories", "tags", "size_categories")
REQUIRED = ("pretty_name", "license", "size_categories", "tags")
# Characters that would make YAML read a plain scalar as something else.
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/<-]*(?::\S[A-Za-z0-9 ._/<-]*)*")


def front_matter(classes: Iterable[str], repository: str) -> dict[str, str | list[str]]:
    """The metadata of a dataset whose workloads have these classes, one entry a workload.

    Seeded tensors are under the repository's licence; others keep the terms of where they come from.
    """
    items = list(classes)
    present = [name for name in CLASSES if name in items]
    fields: dict[str, str | list[str]] = {"pretty_name": "Inference Kernels", "license": "apache-2.0"}
    if set(present) - {"seeded"}:
        fields |= {
            "license": "other",
            "license_name": "terms-of-each-source",
            "license_link": f"{SITE}/{repository}/blob/main/licenses/README.md",
        }
    return fields | {
        "annotations_creators": ["machine-generated"],
        "source_datasets": ["extended" if "contest" in present else "original"],
        "task_categories": ["other"],
        "tags": [
            "gpu-kernels",
            "operators",
            "inference",
            "flashinfer-bench",
            "sglang",
            *(f"class-{name}" for name in present),
        ],
        "size_categories": [size_category(len(items))],
        # Records differ in their fields from definition to definition; the viewer wants one table.
        "viewer": "false",
    }


def size_category(count: int) -> str:
    return next(name for limit, name in SIZES if count < limit)


def card_text(root: Path, classes: Iterable[str], repository: str) -> str:
    """The card: generated front matter, then the README without one. SchemaError if it is not valid."""
    _, body = split_card(read_text(root / CARD))
    text = f"{FENCE}{render(front_matter(classes, repository))}{FENCE}\n{body}"
    for error in card_errors(text):
        raise error
    return text


def split_card(text: str) -> tuple[str | None, str]:
    """(front matter or None, the rest without blank lines at its start)."""
    if not text.startswith(FENCE):
        return None, text
    front, fence, body = text[len(FENCE) :].partition(f"\n{FENCE}")
    if not fence:
        raise _error("a line `---` that ends the front matter", "none")
    return front + "\n", body.lstrip("\n")


def render(fields: dict[str, str | list[str]]) -> str:
    """YAML of plain strings and lists of them."""
    lines = []
    for key, value in fields.items():
        lines.append(f"{key}: {value}" if isinstance(value, str) else f"{key}:")
        lines += [f"- {item}" for item in value if isinstance(value, list)]
    return "\n".join(lines) + "\n"


def parse(front: str) -> dict[str, str | list[str]]:
    """The inverse of `render`: `key: value`, or `key:` and lines `- item`. SchemaError for anything else."""
    fields: dict[str, str | list[str]] = {}
    for line in front.splitlines():
        key, _, value = line.partition(":")
        if line.startswith("- ") and fields and isinstance(last := fields[list(fields)[-1]], list):
            last.append(line[2:])
        elif re.fullmatch(r"[a-z_]+:( \S.*)?", line) and key not in fields:
            fields[key] = value.strip() or []
        else:
            raise _error("`key: value`, or `key:` and lines `- item`, each key once", repr(line))
    return fields


def card_errors(text: str) -> list[SchemaError]:
    """What the Hub, or a reader, would object to."""
    front, body = split_card(text)
    if front is None:
        return [_error("front matter between two lines `---`", "none")]
    fields = parse(front)
    errors = [_error(f"the key {key}", "none") for key in REQUIRED if not fields.get(key)]
    if fields.get("license") == "other" and not {"license_name", "license_link"} <= set(fields):
        errors.append(_error("license_name and license_link beside `license: other`", "one is missing"))
    for key, value in fields.items():
        errors += _key_errors(key, value)
    if not re.match(r"# \S", body):
        errors.append(_error("a title `# ...` after the front matter", repr(body[:40])))
    return errors


def _key_errors(key: str, value: str | list[str]) -> list[SchemaError]:
    if key not in KEYS:
        return [_error(f"one of the keys {', '.join(KEYS)}", key)]
    if isinstance(value, list) != (key in LISTS):
        return [_error(f"{'a list' if key in LISTS else 'one value'} for {key}", repr(value))]
    items = value if isinstance(value, list) else [value]
    pattern = KEYS[key]
    return [
        _error(f"{key} like {pattern or 'plain text'}", repr(item))
        for item in items
        if not PLAIN.fullmatch(item) or (pattern and not re.fullmatch(pattern, item))
    ]


def _error(expected: str, found: str) -> SchemaError:
    return SchemaError(expected=expected, found=found, where=CARD, remedy="correct hub/card.py or the README")
