"""Generated documents: in step with their sources, stable, and honest about unknown blocks."""

import pytest

from helpers import toy
from inference_kernels.core.errors import PackError
from inference_kernels.pages import build


def test_documents_of_the_repository_are_in_step(repository):
    assert [error.line() for error in build.document_differences(repository)] == []


@pytest.fixture
def root(tmp_path):
    root = toy.toy_dataset(tmp_path)
    (root / "README.md").write_text("# toy\n\n<!-- generated: counts -->\nold\n<!-- end -->\n")
    return root


def test_write_then_nothing_differs(root):
    assert len(build.document_differences(root)) == 2
    assert len(build.write_documents(root)) == 2
    assert build.document_differences(root) == [] and build.write_documents(root) == []
    page = (root / "docs" / "definitions" / f"{toy.NAME}.md").read_text()
    assert "| `ids` | input | [N] | int32 |" in page and "ToyLayer.forward" in page and "N=5" in page
    assert "| `seeded` | 2 | - |" in (root / "README.md").read_text()


def test_a_page_without_definition_is_a_difference_and_is_removed(root):
    build.write_documents(root)
    stale = root / "docs" / "definitions" / "gone.md"
    stale.write_text("old")
    assert [error.where for error in build.document_differences(root)] == ["docs/definitions/gone.md"]
    build.write_documents(root)
    assert not stale.exists()


def test_an_unknown_block_is_refused(root):
    (root / "README.md").write_text("<!-- generated: nonsense -->\n<!-- end -->\n")
    with pytest.raises(PackError, match="nonsense"):
        build.expected_documents(root)
