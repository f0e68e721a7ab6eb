"""Convert the licensed original weights of LTX-2.5 to a folder that the engine loads. Standard library only.

The licence must be accepted to get the weights, so nothing of them is in this repository: a manifest says what
the distribution holds. It is a JSON object:

    files        path below the distribution -> {"sha256": hex, "size": bytes}; every file that is read
    licenses     paths among the files, kept in `licenses/` of the result
    tokenizer    {"file": safetensors path, "tensor": name of its uint8 tensor that holds tokenizer.json,
                  "config": content of tokenizer_config.json}
    conversions  component -> arguments of the converter, with {distribution} and {output} in them;
                 it must write the folder {output}/<component>
    copies       component -> folder of the distribution that is in Diffusers form already (such as the VAE)
    documents    path -> JSON: model_index.json, the scheduler's configuration

The converter is that of Diffusers at the commit that the dataset's description pins, run from a checkout.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from inference_kernels.core.errors import DatasetError
from inference_kernels.core.files import canonical_json, parse_json, read_object, write_bytes, write_json
from inference_kernels.core.hashing import sha256_file

CONVERTER_COMMIT = "efe46a5b177af67c64b3666da8ddddac7ee12163"
CONVERTER_SCRIPT = "scripts/convert_ltx2_to_diffusers.py"
STRICT_LOADER = Path(__file__).resolve().with_name("strict_load.py")
STATE_FILE = "prepared.json"
PATH_MUST_CONTAIN = "ltx-2.5-diffusers"
MANIFEST_KEYS = {"files", "licenses", "tokenizer", "conversions", "copies", "documents"}
# A safetensors header is small JSON; the limit keeps a damaged file from being read whole.
MAX_HEADER_BYTES = 100 * 2**20


class PrepareError(DatasetError):
    """A distribution, checkout or converter that is not what the manifest and the pinned commit say."""


@dataclass(frozen=True)
class ConversionStep:
    """One part of the work. name: unique. what: shown to people. run: does it, from the start after a kill."""

    name: str
    what: str
    run: Callable[[], None]


@dataclass(frozen=True)
class ConversionPlan:
    """What to prepare. diffusers: checkout of the converter. python: interpreter with its dependencies."""

    distribution: Path
    manifest: dict[str, Any]
    diffusers: Path
    output: Path
    python: str

    def steps(self) -> Iterator[ConversionStep]:
        manifest = self.manifest
        size = sum(entry["size"] for entry in manifest["files"].values())
        yield ConversionStep("verify", f"hash {len(manifest['files'])} files, {size / 1e9:.2f} GB", self.verify)
        yield ConversionStep("licenses", f"keep {', '.join(manifest['licenses'])}", self.keep_licenses)
        yield ConversionStep("tokenizer", f"extract it from {manifest['tokenizer']['file']}", self.extract_tokenizer)
        for component, arguments in manifest["conversions"].items():
            yield ConversionStep(
                f"convert {component}",
                " ".join([CONVERTER_SCRIPT, *arguments]),
                lambda component=component: self.convert(component),
            )
        for component, folder in manifest["copies"].items():
            yield ConversionStep(f"copy {component}", folder, lambda component=component: self.copy(component))
        yield ConversionStep("documents", f"write {', '.join(manifest['documents'])}", self.write_documents)
        yield ConversionStep("load", "load every component strictly", self.load)

    def source(self, name: str) -> Path:
        return self.distribution / name

    def verify(self) -> None:
        for name, entry in self.manifest["files"].items():
            path = self.source(name)
            found = path.stat().st_size if path.is_file() else None
            if found != entry["size"]:
                raise PrepareError(
                    expected=f"{entry['size']} bytes",
                    found=f"{found or 'no'} bytes",
                    where=name,
                    remedy="download the file again",
                )
            digest = sha256_file(path)
            if digest != entry["sha256"]:
                raise PrepareError(
                    expected=f"SHA-256 {entry['sha256']}", found=digest, where=name, remedy="download the file again"
                )

    def keep_licenses(self) -> None:
        for name in self.manifest["licenses"]:
            write_bytes(self.output / "licenses" / name, self.source(name).read_bytes())

    def extract_tokenizer(self) -> None:
        settings = self.manifest["tokenizer"]
        text = byte_tensor(self.source(settings["file"]), settings["tensor"])
        try:
            parse_json(text.decode(), settings["tensor"])
        except UnicodeDecodeError as error:
            raise PrepareError(
                expected="UTF-8 JSON",
                found=str(error),
                where=settings["tensor"],
                remedy="name the tensor that holds tokenizer.json",
            ) from error
        write_bytes(self.output / "tokenizer" / "tokenizer.json", text)
        write_json(self.output / "tokenizer" / "tokenizer_config.json", settings["config"])

    def convert(self, component: str) -> None:
        require_commit(self.diffusers)
        partial = self.output / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        places = {"distribution": str(self.distribution), "output": str(partial)}
        arguments = [text.format(**places) for text in self.manifest["conversions"][component]]
        self.call(f"convert {component}", [str(self.diffusers / CONVERTER_SCRIPT), *arguments])
        if not any((partial / component).glob("*")):
            raise PrepareError(
                expected=f"a folder {component} in {{output}}",
                found="none",
                where=f"convert {component}",
                remedy="correct the manifest's arguments",
            )
        self.put(partial / component, component)
        shutil.rmtree(partial)

    def copy(self, component: str) -> None:
        partial = self.output / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        folder = self.manifest["copies"][component]
        for name in self.manifest["files"]:
            if PurePosixPath(name).is_relative_to(folder):
                target = partial / PurePosixPath(name).relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.source(name), target)
        self.put(partial, component)

    def put(self, made: Path, component: str) -> None:
        shutil.rmtree(self.output / component, ignore_errors=True)
        made.rename(self.output / component)

    def write_documents(self) -> None:
        for name, document in self.manifest["documents"].items():
            write_json(self.output / name, document)

    def load(self) -> None:
        self.call("load", [str(STRICT_LOADER), str(self.output)])

    def call(self, step: str, arguments: list[str]) -> None:
        """Run Python on the checkout's package; its output goes to logs/ of the result."""
        log = self.output / "logs" / f"{step.replace(' ', '_')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"PYTHONPATH": str(self.diffusers.resolve() / "src"), "HF_HUB_OFFLINE": "1"}
        with open(log, "wb") as stream:
            done = subprocess.run(
                [self.python, *arguments], stdout=stream, stderr=subprocess.STDOUT, env=os.environ | environment
            )
        if done.returncode:
            message = log.read_text(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise PrepareError(expected="exit code 0", found=message[-1], where=step, remedy=f"see {log}")


def prepare(plan: ConversionPlan, report: Callable[[str], None]) -> dict[str, Any]:
    """Do the steps that are left; the state file names a step once it is complete.

    PrepareError if the folder's name is one the engine does not recognise, or the folder holds another state.
    """
    state_path, steps = plan.output / STATE_FILE, list(plan.steps())
    identity = {
        "manifest_sha256": hashlib.sha256(canonical_json(plan.manifest).encode()).hexdigest(),
        "converter_commit": CONVERTER_COMMIT,
    }
    if PATH_MUST_CONTAIN not in plan.output.resolve().as_posix().lower():
        raise PrepareError(
            expected=f"a path that contains {PATH_MUST_CONTAIN!r}",
            found=str(plan.output),
            where="--output",
            remedy="the engine goes by the name: choose such a folder",
        )
    state = read_object(state_path) if state_path.exists() else identity | {"done": []}
    if not state_path.exists() and plan.output.exists() and any(plan.output.iterdir()):
        raise PrepareError(
            expected="a new or empty folder",
            found="other files",
            where=str(plan.output),
            remedy="choose another folder",
        )
    if identity != {key: state.get(key) for key in identity}:
        raise PrepareError(
            expected="the manifest and converter that the folder was begun with",
            found="others",
            where=str(state_path),
            remedy="choose another --output",
        )
    fresh = [step for step in steps if step.name not in state["done"]]
    for step in fresh:
        report(f"{step.name}: {step.what}")
        step.run()
        state["done"].append(step.name)
        write_json(state_path, state)
    return {"output": str(plan.output), "steps": len(steps), "run": [step.name for step in fresh]}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest; PrepareError for missing keys, paths that leave a folder, or unlisted files."""
    manifest = read_object(path)

    def require(holds: bool, expected: str, found: Any) -> None:
        if not holds:
            raise PrepareError(expected=expected, found=str(found), where=str(path), remedy="correct the manifest")

    require(set(manifest) == MANIFEST_KEYS, f"the keys {sorted(MANIFEST_KEYS)}", sorted(manifest))
    files = manifest["files"]
    components = [*manifest["conversions"], *manifest["copies"]]
    for name in [*files, *manifest["documents"], *manifest["copies"].values(), *components]:
        parts = PurePosixPath(name).parts
        require(bool(parts) and parts[0] != "/" and ".." not in parts, "paths below a folder", name)
    for name in [*manifest["licenses"], manifest["tokenizer"]["file"]]:
        require(name in files, "licences and the tokenizer's file among the files", name)
    require(bool(manifest["licenses"]), "at least one licence", "none")
    require(len(set(components)) == len(components), "each component once", components)
    return manifest


def byte_tensor(path: Path, name: str) -> bytes:
    """Read the bytes of a uint8 tensor of a safetensors file; PrepareError if it has none of that name."""
    with open(path, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = parse_json(stream.read(min(size, MAX_HEADER_BYTES)).decode(errors="replace"), str(path))
        entry = header.get(name, {})
        if entry.get("dtype") != "U8":
            raise PrepareError(
                expected=f"a uint8 tensor {name}",
                found=str(entry.get("dtype", "none")),
                where=str(path),
                remedy="name the tensor that holds the tokenizer",
            )
        start, end = entry["data_offsets"]
        stream.seek(8 + size + start)
        return stream.read(end - start)


def require_commit(checkout: Path) -> None:
    """PrepareError unless the checkout is at the pinned commit with an unchanged converter."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else f"no commit ({done.stderr.strip()})"

    found = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    if found != CONVERTER_COMMIT or changed:
        raise PrepareError(
            expected=f"Diffusers at {CONVERTER_COMMIT}, unchanged",
            where=str(checkout),
            found=f"{found}{' with changes' if changed else ''}",
            remedy=f"git -C {checkout} checkout {CONVERTER_COMMIT}",
        )
