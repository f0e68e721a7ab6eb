"""The card of this repository: valid for the Hub, and every link on it leads to a published file."""

import re

import pytest
from huggingface_hub import DatasetCard

from helpers.commands import SCRIPTS, command
from inference_kernels.core.records import read_captures
from inference_kernels.hub.files import is_published

REPOSITORY = SCRIPTS.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "card.md"
    result = command("sync_hub.py", "publish", "--dry-run", "--card", path)
    assert result.code == 0, result.out
    return path.read_text()


def test_front_matter_follows_the_data(card):
    fields = DatasetCard(card).data.to_dict()
    classes = {record["class"] for record in read_captures(REPOSITORY)}
    assert {tag for tag in fields["tags"] if tag.startswith("class-")} == {f"class-{name}" for name in classes}
    assert (fields["license"] == "apache-2.0") == (classes == {"seeded"})
    assert fields["size_categories"] == ["n<1K"] or len(read_captures(REPOSITORY)) >= 1000


def test_links_lead_to_published_files(card):
    targets = {first or second for first, second in LINK.findall(card)}
    local = {target.split("#")[0] for target in targets if not re.match(r"https?://|#", target)}
    assert local
    for target in sorted(local):
        assert (REPOSITORY / target).exists() and is_published(target), target
