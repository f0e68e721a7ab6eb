"""The page of captured and replayed calls, from summaries of both kinds of run."""

import json

import pytest

from inference_kernels.pages.captures import FOLDER, SUMMARIES, captures_page

CALL = {
    "definition": "gemm",
    "case": "landscape",
    "layer": "to_q",
    "step": 7,
    "axes": {"M": 6144},
    "passed": True,
    "errors": {"c": {"max_abs_error": 0.0156, "tolerance_used": 0.42}, "d": {"max_abs_error": 0, "tolerance_used": 0}},
}
RUN = {
    "model": {"title": "Model-shaped, 1 block"},
    "hardware": {"name": "GPU"},
    "calls": [CALL],
    "engine": {"version": "1.2", "torch": "3.4", "substitutions": ["a kernel: another one"]},
}


@pytest.fixture
def page(tmp_path):
    def write(name: str, **more) -> str:
        folder = tmp_path / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(RUN | more))
        return captures_page(tmp_path)

    return write


def test_a_diffusion_run_shows_sizes_worst_error_and_substitutions(page):
    text = page("h200_image", seconds={"landscape": 5.4})
    assert "| `gemm` | landscape, step 7 | M 6144 | `to_q` | 0.016 | 42% |" in text
    assert "landscape 5 s." in text and "1 of 1 calls pass" in text and "- Substituted: a kernel: another one." in text


def test_a_text_run_shows_the_call_what_failed_and_what_was_excluded(page):
    calls = [CALL | {"call_path": "Layer.forward -> kernel", "passed": False}]
    excluded = [{"definition": "index", "case": "long", "reason": "near-ties"}]
    text = page("h200_qwen_next", cases={"long": {"seconds": 70.6}}, calls=calls, excluded=excluded)
    assert "`Layer.forward -> kernel` | 0.016 | 42%, failed |" in text and "0 of 1 calls pass" in text
    assert "- Excluded: a call of `index` in long: near-ties." in text and "long 71 s." in text


def test_every_committed_summary_of_a_run_is_on_the_page(repository):
    runs = {path.stem for path in (repository / FOLDER).glob("*.json") if "calls" in json.loads(path.read_text())}
    assert runs == set(SUMMARIES)
