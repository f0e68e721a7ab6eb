"""The dataset card: generated front matter that the Hub's own library reads, before the README."""

import pytest
from huggingface_hub import DatasetCard

from helpers.hub_toys import README, write
from inference_kernels.core.errors import SchemaError
from inference_kernels.hub.card import FENCE, card_text, front_matter, size_category, split_card

GOOD = f"---\n{front_matter(['seeded'], 'owner/data')}---\n\n{README}"


def fields(*classes):
    return DatasetCard(f"{FENCE}{front_matter(classes, 'o/n')}{FENCE}\n# Toy\n").data.to_dict()


def test_the_generated_front_matter_stands_before_the_readme(tmp_path):
    write(tmp_path, "README.md", README)
    front, body = split_card(card_text(tmp_path, ["seeded", "seeded", "contest"], "owner/data"))
    assert (front, body) == (front_matter(["seeded", "seeded", "contest"], "owner/data"), README)


def test_front_matter_of_a_pulled_card_is_replaced(tmp_path):
    write(tmp_path, "README.md", GOOD)
    assert card_text(tmp_path, ["seeded"], "owner/data") == GOOD


def test_front_matter_that_does_not_end_is_refused(tmp_path):
    write(tmp_path, "README.md", GOOD.replace("viewer: false\n---", "viewer: false"))
    with pytest.raises(SchemaError, match="ends"):
        card_text(tmp_path, ["seeded"], "owner/data")


def test_the_library_reads_what_is_written():
    common = {
        "pretty_name": "Inference Kernels",
        "annotations_creators": ["machine-generated"],
        "task_categories": ["other"],
        "size_categories": ["n<1K"],
        "viewer": False,
    }
    tags = ["gpu-kernels", "operators", "inference", "flashinfer-bench", "sglang"]
    assert fields("seeded") == common | {
        "license": "apache-2.0",
        "source_datasets": ["original"],
        "tags": [*tags, "class-seeded"],
    }
    assert fields("seeded", "contest", "published") == common | {
        "license": "other",
        "license_name": "terms-of-each-source",
        "license_link": "https://huggingface.co/datasets/o/n/blob/main/licenses/README.md",
        "source_datasets": ["extended"],
        "tags": [*tags, "class-published", "class-contest", "class-seeded"],
    }


@pytest.mark.parametrize(
    "count, name", [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (1104, "1K<n<10K"), (10_000, "10K<n<100K")]
)
def test_size_categories(count, name):
    assert size_category(count) == name
