"""Licences: every name in the repository has an entry; entries say where they were read."""

import importlib.metadata
import json
import shutil
from email.message import Message
from pathlib import Path

import pytest

from helpers.commands import SCRIPTS, command, require_one_line
from inference_kernels.core.errors import SchemaError
from inference_kernels.pages import build, licences

pytestmark = pytest.mark.no_torch


REPOSITORY = SCRIPTS.parent
WORKS = licences.read_works(REPOSITORY)


def unlisted(root: Path) -> set[tuple[str, str]]:
    """Name and version of the pinned packages whose licences are not listed."""
    pinned = {(name, version) for name, version, _ in licences.pinned_packages(root)}
    return pinned - {licences.release_of(row) for row in licences.read_packages(root)}


def test_nothing_that_the_repository_names_lacks_an_entry():
    assert [error.line() for error in licences.missing_works(REPOSITORY)] == []
    assert unlisted(REPOSITORY) == set()


def test_the_names_are_really_collected():
    used = {(kind, name) for kind, name, _ in licences.used_names(REPOSITORY)}
    assert {
        ("source", "mlsys26-contest"),
        ("source", "sglang"),
        ("engine", "sglang"),
        ("model", "ltx-2.5"),
        ("model", "qwen3-next-gdn"),
        ("model", "deepseek-v4.1-flash"),
        ("package", "modal"),
    } <= used
    assert {"torch", "sglang", "flashinfer-bench", "pytest"} <= {
        name for name, _, _ in licences.pinned_packages(REPOSITORY)
    }


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work["name"])
def test_a_licence_is_either_read_somewhere_or_not_claimed(work):
    assert work["kind"] in ("engine", "model", "dataset", "kernel library", "library", "tool")
    assert all(work[key] for key in ("name", "version", "use", "licence", "read_in"))
    assert work["files"] or any(work["names"].values())
    unread = work["read_in"].startswith("not readable")
    assert unread == work["licence"].startswith("see its "), "a licence nobody could read must not be named"


def test_names_belong_to_one_work_and_files_exist():
    for kind in licences.NAME_KINDS:
        names = [name.lower() for work in WORKS for name in work["names"].get(kind, [])]
        assert len(names) == len(set(names)), kind
        assert kind != "package" or names == [licences.normalised(name) for name in names]
    for pattern in [pattern for work in WORKS for pattern in work["files"]]:
        assert list(REPOSITORY.glob(pattern)), pattern


def test_every_notice_belongs_to_a_work_and_names_it():
    used = {work["notice"]: work for work in WORKS if work["notice"]}
    assert {path.name for path in (REPOSITORY / "licenses").glob("*.txt")} == set(used)
    for name, work in used.items():
        first, url = (REPOSITORY / "licenses" / name).read_text().splitlines()[:2]
        assert work["name"].split()[0].lower() in first.lower() and url.startswith("https://"), name


def test_works_under_mit_or_bsd_bring_their_text():
    """These licences ask for their text and copyright line with every copy."""
    for work in WORKS:
        if work["kind"] == "kernel library" and work["licence"] in ("MIT", "BSD-3-Clause"):
            text = (REPOSITORY / "licenses" / work["notice"]).read_text()
            assert "Copyright" in text and "IMPLIED" in text, work["name"]


def test_listed_packages_say_what_the_installed_ones_say():
    listed = {(row["name"], row["version"]): row for row in licences.read_packages(REPOSITORY)}
    compared = 0
    for row in licences.package_rows(importlib.metadata.distributions()):
        if (row["name"], row["version"]) in listed:
            assert listed[row["name"], row["version"]] == row
            compared += 1
    assert compared > 10


@pytest.fixture
def root(tmp_path) -> Path:
    """Copy the parts of the repository that the tables are made of."""
    for part in ("licenses", "definitions", "requirements"):
        shutil.copytree(REPOSITORY / part, tmp_path / part)
    return tmp_path


def solution(root: Path, source: str, dependencies: list[str]) -> None:
    folder = root / "solutions" / "gdn"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "one.json").write_text(
        json.dumps(
            {
                "name": "one",
                "definition": "gdn_decode_qk4_v8_d128_k_last",
                "author": "t",
                "spec": {"language": "python", "dependencies": dependencies},
                "sources": [{"path": "main.py", "content": source}, {"path": "helpers.py", "content": "import json\n"}],
            }
        )
    )


def missing(root: Path) -> list[str]:
    return [error.expected for error in licences.missing_works(root)]


def test_a_solution_needs_entries_for_what_it_imports_and_depends_on(root):
    solution(root, "import torch\nimport helpers\nfrom math import pi\nfrom . import x\n", ["torch>=2"])
    assert missing(root) == []
    source = "def run():\n    import unheard_of.part\n    from other_one import x\n"
    solution(root, source, ["Nobody_Knows[cuda]==1"])
    assert missing(root) == [
        "a work for the package nobody-knows",
        "a work for the module other_one",
        "a work for the module unheard_of",
    ]


@pytest.mark.parametrize("tag", ["model:unknown-7b", "source:somewhere"])
def test_a_tag_without_entry_is_named_and_stops_the_tables(root, tag):
    path = root / "definitions" / "gdn" / "gdn_decode_qk4_v8_d128_k_last.json"
    value = json.loads(path.read_text())
    value["tags"].append(tag)
    path.write_text(json.dumps(value))
    kind, name = tag.split(":")
    assert missing(root) == [f"a work for the {kind} {name}"]
    with pytest.raises(SchemaError, match=name):
        build.licence_documents(root)


def record(data_class: str, model: str, engine: str) -> dict:
    place = {"min": 0, "max": 0, "zero_share": 0, "non_finite": 0}
    outputs = {} if data_class == "contest" else {"new_state": {"path": "x", "tensor_key": "tensor"}}
    return {
        "workload": "00000000-0000-5000-8000-000000000000",
        "definition": "gdn_decode_qk4_v8_d128_k_last",
        "class": data_class,
        "outputs": outputs,
        "auxiliary": {},
        "statistics": {"q": place},
        "adaptations": [],
        "model": {"id": model, "revision": "1", "config_sha256": "0" * 64, "seed": 1, "recipe": "r"},
        "engine": {"name": engine, "version": "1", "flags": {}, "environment": {}, "substitutions": []},
        "hardware": {"device": "cpu"},
        "request": {"case": "c"},
        "operation": {"call_path": "p", "layer": None, "step": None, "phase": "decode", "ranks_gathered": 1},
        "replay": {"criterion": {}, "device": "cpu", "errors": {}, "passed": True},
    }


def test_records_need_entries_and_their_terms_follow_the_class(root):
    rows = [
        record("seeded", "seeded/qwen3-next-gdn", "sglang"),
        record("contest", "Qwen3-Next", "not stated by the contest"),
        record("published", "deepseek-ai/DeepSeek-V4.1-Flash", "sglang"),
    ]
    (root / "captures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert missing(root) == []
    terms = {row[0].split("`")[1]: row[1:] for row in licences.file_rows(root, WORKS) if row[0].startswith("class")}
    assert terms["seeded"][0].startswith("Apache-2.0, this repository's") and "SGLang" in terms["seeded"][1]
    assert terms["contest"][0].startswith("the terms of MLSys 2026")
    assert terms["published"] == ["the terms of DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash, SGLang"]
    (root / "captures.jsonl").write_text(json.dumps(record("seeded", "seeded/new", "vllm")) + "\n")
    assert missing(root) == ["a work for the model new", "a work for the engine vllm"]


def test_a_package_pinned_in_another_version_is_named(root):
    for path in (root / "requirements").iterdir():
        path.unlink()
    (root / "requirements" / "more.txt").write_text("torch==9.9 \\\n    --hash=sha256:0\nnumpy==2.4.6\n")
    assert unlisted(root) == {("torch", "9.9")}


def test_a_broken_entry_is_refused(root):
    works = json.loads((root / licences.WORKS).read_text())
    (root / licences.WORKS).write_text(json.dumps([works[0] | {"notice": "gone.txt"}]))
    with pytest.raises(SchemaError, match="gone.txt"):
        licences.read_works(root)
    (root / licences.WORKS).write_text(json.dumps([works[0] | {"license": "MIT"}]))
    with pytest.raises(SchemaError, match="license"):
        licences.read_works(root)


def test_the_pages_list_every_work_and_every_package(root):
    pages = build.licence_documents(root)
    text, packages = pages[root / licences.PAGE], pages[root / licences.PACKAGES_PAGE]
    assert all(f"\n| {work['name']} | {work['kind']} |" in text for work in WORKS)
    assert text.endswith((REPOSITORY / licences.PAGE).read_text().rpartition("<!-- end -->")[2])
    assert packages.count("\n| ") == len(licences.read_packages(root)) + 2
    for family in (root / "definitions").iterdir():
        assert f"`definitions/{family.name}/`" in text


def metadata(**fields) -> Message:
    message = Message()
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    "fields, files, expected",
    [
        ({"License_Expression": "MIT AND ISC", "License": "other"}, [], ("MIT AND ISC", "License-Expression")),
        ({"License": "Apache 2.0", "Classifier": "License :: OSI Approved :: X"}, [], ("Apache 2.0", "License")),
        ({"License": "UNKNOWN", "Classifier": ["License :: A", "Topic :: B"]}, [], ("A", "Classifier")),
        ({"License": "long\ntext"}, ["LICENSE", "COPYING"], ("see its COPYING, LICENSE", "file")),
        ({}, [], ("not stated in its metadata", "-")),
    ],
)
def test_a_licence_is_reported_in_the_packages_own_words(fields, files, expected):
    assert licences.stated_licence(metadata(**fields), files) == expected


def test_collecting_reads_an_environment(tmp_path):
    folder = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    for name, text in (("Some_Thing", "License: MIT"), ("plain", "Summary: x")):
        (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{text}\n"
        )
    result = command("collect_licences.py", tmp_path / "env", "--root", tmp_path)
    assert (result.code, result.summary) == (0, {"packages": 2, "stated": 1})
    rows = json.loads((tmp_path / licences.PACKAGES).read_text())
    assert rows[1] == {"name": "some-thing", "version": "1.0", "licence": "MIT", "stated_in": "License"}
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "x.txt").write_text("plain==1.0\n")
    shutil.rmtree(folder / "plain-1.0.dist-info")  # pinned, so its row stays; the other is gone from both
    shutil.rmtree(folder / "Some_Thing-1.0.dist-info")
    assert command("collect_licences.py", tmp_path / "env", "--root", tmp_path).summary["packages"] == 1
    require_one_line(command("collect_licences.py", tmp_path / "nothing", "--root", tmp_path), "make install")
