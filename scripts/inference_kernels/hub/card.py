"""The dataset card: README.md with the front matter that the Hub reads, generated at each publication.

Keys and values: https://github.com/huggingface/hub-docs/blob/main/datasetcard.md
"""

from collections.abc import Iterable
from pathlib import Path

from inference_kernels.core.errors import SchemaError
from inference_kernels.core.files import read_text
from inference_kernels.core.records import CLASSES
from inference_kernels.hub.files import CARD

FENCE = "---\n"
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))
# Seeded tensors are under the repository's licence; others keep the terms of where they come from.
SEEDED_LICENCE = "license: apache-2.0"
MIXED_LICENCE = """license: other
license_name: terms-of-each-source
license_link: https://huggingface.co/datasets/{repository}/blob/main/licenses/README.md"""
# Records differ in their fields between definitions, and the viewer wants one table: `viewer: false`.
FRONT_MATTER = """pretty_name: Inference Kernels
{licence}
annotations_creators:
- machine-generated
source_datasets:
- {source}
task_categories:
- other
tags:
- gpu-kernels
- operators
- inference
- flashinfer-bench
- sglang
{class_tags}size_categories:
- {size}
viewer: false
"""


def front_matter(classes: Iterable[str], repository: str) -> str:
    """Write the metadata of a dataset, as YAML. classes: the class of each workload."""
    items = list(classes)
    present = [name for name in CLASSES if name in items]
    return FRONT_MATTER.format(
        licence=MIXED_LICENCE.format(repository=repository) if set(present) - {"seeded"} else SEEDED_LICENCE,
        source="extended" if "contest" in present else "original",
        class_tags="".join(f"- class-{name}\n" for name in present),
        size=size_category(len(items)),
    )


def size_category(count: int) -> str:
    """Return the Hub's name for a number of workloads."""
    return next(name for limit, name in SIZES if count < limit)


def card_text(root: Path, classes: Iterable[str], repository: str) -> str:
    """Write the card: generated front matter, then the README without its own, if it has one."""
    _, body = split_card(read_text(root / CARD))
    return f"{FENCE}{front_matter(classes, repository)}{FENCE}\n{body}"


def split_card(text: str) -> tuple[str | None, str]:
    """Return (front matter or None, the rest without leading blank lines). SchemaError if it does not end."""
    if not text.startswith(FENCE):
        return None, text
    front, fence, body = text[len(FENCE) :].partition(f"\n{FENCE}")
    if not fence:
        raise SchemaError(
            expected="a line `---` that ends the front matter", found="none", where=CARD, remedy="correct the README"
        )
    return front + "\n", body.lstrip("\n")
