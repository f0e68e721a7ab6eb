"""The dataset card: what is generated is valid, says the right things, and what is wrong is refused."""

import pytest

from helpers.hub_toys import README, write
from inference_kernels.core.errors import SchemaError
from inference_kernels.hub.card import card_errors, card_text, front_matter, parse, render, size_category, split_card

GOOD = f"---\n{render(front_matter(['seeded'], 'owner/data'))}---\n\n{README}"


def test_the_generated_front_matter_reads_back(tmp_path):
    write(tmp_path, "README.md", README)
    text = card_text(tmp_path, ["seeded", "seeded", "contest"], "owner/data")
    front, body = split_card(text)
    assert body == README and parse(front) == front_matter(["seeded", "seeded", "contest"], "owner/data")
    assert not card_errors(text)


def test_front_matter_of_a_pulled_card_is_replaced(tmp_path):
    write(tmp_path, "README.md", GOOD)
    assert card_text(tmp_path, ["seeded"], "owner/data") == GOOD


def test_the_licence_follows_the_classes():
    assert front_matter(["seeded"] * 3, "o/n")["license"] == "apache-2.0"
    other = front_matter(["seeded", "published"], "o/n")
    assert other["license"] == "other" and "o/n/blob/main/licenses" in other["license_link"]
    assert [tag for tag in other["tags"] if tag.startswith("class-")] == ["class-published", "class-seeded"]


@pytest.mark.parametrize(
    "count, name", [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (1104, "1K<n<10K"), (10_000, "10K<n<100K")]
)
def test_size_categories(count, name):
    assert size_category(count) == name


@pytest.mark.parametrize(
    "old, new, named",
    [
        ("license: apache-2.0", "license: mine", "license"),
        ("license: apache-2.0\n", "", "the key license"),
        ("viewer: false", "viewer: no", "viewer"),
        ("viewer: false", "colour: red", "colour"),
        ("- n<1K", "- n<2K", "size_categories"),
        ("license: apache-2.0", "license: other", "license_name"),
        ("tags:\n", "tags: x\n", "- gpu-kernels"),
        ("pretty_name: Inference", "pretty_name: 'Inference", "pretty_name"),
        ("---\n\n# Toy", "---\n\nToy", "title"),
        ("viewer: false", "viewer: false\nviewer: true", "once"),
        ("viewer: false\n---", "viewer: false", "ends"),
        ("---\npretty", "pretty", "front matter"),
    ],
)
def test_a_wrong_card_is_refused(old, new, named):
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    try:
        found = [str(error) for error in card_errors(text)]
    except SchemaError as error:
        found = [str(error)]
    assert any(named in line for line in found), found


def test_yaml_agrees(tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for classes in (["seeded"], ["published", "contest"]):
        fields = front_matter(classes, "owner/data")
        read = yaml.safe_load(render(fields))
        assert read == fields | {"viewer": False}
