"""Read the source of the pinned engine without importing it: from an installed copy, else from its wheel."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "0.5.23"
REPOSITORY = Path(__file__).resolve().parents[2]


def installed() -> Path | None:
    """Return the site-packages folder of the engine's environment, if it holds the pinned version."""
    found = sorted((REPOSITORY / ".venv-engine").glob(f"lib/python3*/site-packages/sglang-{VERSION}.dist-info"))
    return found[0].parent if found else None


def wheel(folder: Path) -> Path | str:
    """Return the wheel in `folder`, downloaded if it is not there; a string with the reason if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(folder.glob(f"sglang-{VERSION}-*.whl"))
    if not found:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(folder),
            f"sglang=={VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        found = sorted(folder.glob(f"sglang-{VERSION}-*.whl"))
        if not found:
            message = done.stderr.strip().splitlines() or ["no message"]
            return f"cannot download sglang=={VERSION}: {message[-1]}"
    return found[0]


class Source:
    """Modules of the engine as syntax trees. place: a site-packages folder or a wheel."""

    def __init__(self, place: Path):
        self.place = place
        self.archive = zipfile.ZipFile(place) if place.suffix == ".whl" else None
        self.names = set(self.archive.namelist()) if self.archive else set()
        self.trees: dict[str, ast.Module] = {}

    def has(self, name: str) -> bool:
        return name in self.names if self.archive else (self.place / name).is_file()

    def tree(self, name: str) -> ast.Module:
        if name not in self.trees:
            source = self.archive.read(name) if self.archive else (self.place / name).read_bytes()
            self.trees[name] = ast.parse(source)
        return self.trees[name]

    def find(self, dotted: str) -> ast.AST:
        """Return the function or class at a dotted path; LookupError that names the missing part."""
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            stem = "/".join(parts[:count])
            name = next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if self.has(name)), None)
            if name:
                break
        else:
            raise LookupError(f"no module in {dotted}")
        node: ast.AST = self.tree(name)
        for part in parts[count:]:
            node = next(
                (
                    child
                    for child in ast.walk(node)
                    if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name == part
                ),
                None,
            )
            if node is None:
                raise LookupError(f"no {part} in {name}")
        return node

    def parameters(self, dotted: str) -> list[str]:
        arguments = self.find(dotted).args
        return [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    def members(self, dotted: str) -> set[str]:
        """Return the names a class defines: methods, fields, and attributes that its methods assign on self."""
        names = set()
        for node in ast.walk(self.find(dotted)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
        return names

    def fields(self, folder: str) -> set[str]:
        """Return the annotated class fields of all modules in a folder of the package."""
        if self.archive:
            files = [name for name in self.names if name.startswith(folder) and name.endswith(".py")]
        else:
            files = [path.relative_to(self.place).as_posix() for path in (self.place / folder).glob("*.py")]
        return {
            node.target.id
            for name in files
            for node in ast.walk(self.tree(name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }


def require_known_calls(engine: Source, solution: Path) -> None:
    """Assert that every engine function that a solution imports is called with parameters of the pinned engine."""
    tree = ast.parse(solution.read_text())
    modules = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("sglang.")
        for alias in node.names
    }
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in modules
    ]
    assert modules and {call.func.id for call in calls} == set(modules)
    for call in calls:
        known = engine.parameters(f"{modules[call.func.id]}.{call.func.id}")
        assert {keyword.arg for keyword in call.keywords} <= set(known) and len(call.args) <= len(known)
