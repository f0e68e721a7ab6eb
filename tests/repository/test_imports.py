"""The packages import in one direction. Every import counts: relative, for type checkers, inside functions."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_torch


REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = REPOSITORY / "scripts" / "inference_kernels"
NAME = "inference_kernels"

# package -> the packages that it may import besides itself; cli.py is for scripts and the container's entry only.
MAY_IMPORT = {
    "core": set(),
    "seeded": {"core"},
    "capture": {"seeded", "core"},
    "models": {"capture", "seeded", "core"},
    "agentx": {"core"},
    "engine": {"models", "capture", "seeded", "agentx", "core"},
    "cloud": {"engine", "models", "capture", "seeded", "agentx", "core"},
    "contest": {"capture", "seeded", "core"},
    "check": {"seeded", "core"},
    "judge": {"core"},
    "hub": {"core"},
    "release": {"core"},
    "pages": {"check", "judge", "core"},
}
USES_CLI = {"cloud.container"}
WORKER_MAY_IMPORT = {"judge.channel", "judge.window", "judge.rearrange", "judge.verdicts"}
STANDARD_LIBRARY_ONLY = {
    "core.errors",
    "core.files",
    "core.hashing",
    "core.layout",
    "core.findings",
    "core.locks",
    "core.types",
}
MODULES_PER_PACKAGE = 25


def module_name(path: Path, library: Path = LIBRARY) -> str:
    """`core.files` for core/files.py, `core` for core/__init__.py."""
    return ".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__").replace("__init__", "")


@cache
def modules(library: Path = LIBRARY) -> dict[str, Path]:
    return {module_name(path, library): path for path in sorted(library.rglob("*.py"))}


def imported_modules(module: str, library: Path = LIBRARY) -> set[str]:
    """The modules of the library that `module` imports anywhere, by their names below the library."""
    known, found = modules(library), set()
    for node in ast.walk(ast.parse(known[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix(NAME + ".") for alias in node.names if alias.name.startswith(NAME + ".")}
        if isinstance(node, ast.ImportFrom):
            base = absolute(node, module, known[module])
            if base is not None:
                names = {f"{base}.{alias.name}".strip(".") for alias in node.names}
                found |= {name if name in known else base for name in names}
    return found - {""}


def absolute(node: ast.ImportFrom, module: str, path: Path) -> str | None:
    """The module below the library that an ImportFrom names; None for another package."""
    if node.level:
        parts = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])
    if node.module == NAME or (node.module or "").startswith(NAME + "."):
        return node.module.removeprefix(NAME).strip(".")
    return None


def cycle(needs: dict[str, set[str]]) -> list[str]:
    """List the modules on circles, and those between two circles: what remains when the ends are removed repeatedly."""
    left = dict(needs)
    while left:
        wanted = set().union(*left.values())
        ends = [name for name in left if name not in wanted or not needs[name] & left.keys()]
        if not ends:
            break
        for name in ends:
            del left[name]
    return sorted(left)


def package(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", modules())
def test_a_package_imports_only_what_stands_below_it(module):
    for imported in imported_modules(module):
        if imported == "cli":
            assert module in USES_CLI
        elif package(imported) != package(module):
            assert module != "cli" or package(imported) == "core"
            assert module == "cli" or package(imported) in MAY_IMPORT[package(module)], f"{module} imports {imported}"


def test_there_is_no_circle():
    assert cycle({module: imported_modules(module) for module in modules()}) == []


def test_what_runs_beside_a_candidate_imports_little():
    for module in modules():
        if module.startswith("judge.worker."):
            ours = {name for name in imported_modules(module) if package(name) != "core"}
            assert {name for name in ours if not name.startswith("judge.worker.")} <= WORKER_MAY_IMPORT


@pytest.mark.parametrize("module", sorted(STANDARD_LIBRARY_ONLY))
def test_the_lowest_layer_is_the_standard_library(module):
    assert imported_modules(module) <= STANDARD_LIBRARY_ONLY
    for node in ast.walk(ast.parse(modules()[module].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert all(name.split(".")[0] in {*sys.stdlib_module_names, NAME} for name in names)


def test_every_package_says_what_lives_there_and_stays_small():
    folders = {path.parent for path in LIBRARY.rglob("*.py")}
    for folder in folders:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder.relative_to(REPOSITORY)
        assert len(list(folder.glob("*.py"))) - 1 <= MODULES_PER_PACKAGE
    assert {folder.relative_to(LIBRARY).parts[0] for folder in folders if folder != LIBRARY} == MAY_IMPORT.keys()


def test_hidden_imports_are_seen(tmp_path):
    """All forms of imports, in a library with two circles that imports at module level do not show."""
    sources = {
        "core/__init__.py": "",
        "core/check.py": "from . import blobs",
        "core/blobs.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .check import Checked",
        "hub/__init__.py": "",
        "hub/client.py": "def open_reader():\n    from .reader import Reader",
        "hub/reader.py": "from inference_kernels.hub import client",
        "cli.py": "import inference_kernels.core.blobs",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    needs = {module: imported_modules(module, tmp_path) for module in modules(tmp_path)}
    assert needs["cli"] == {"core.blobs"}
    assert cycle(needs) == ["core.blobs", "core.check", "hub.client", "hub.reader"]
