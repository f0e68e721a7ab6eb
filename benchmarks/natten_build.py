#!/usr/bin/env python3
"""Build the part of NATTEN that the LTX-2.5 decoder calls: its Hopper kernels for BF16, 3-D, head size 64, forward.

PyPI has only NATTEN's sources, with kernels for every rank, dtype, head size and direction. This reduces them to one
head size, dtype and rank without causal axes, compiles them for sm_90a against the torch of this interpreter, and puts
the extension beside NATTEN's unchanged Python files. Functions that are left out raise when called.

Needs torch for CUDA, nvcc and ninja: run it in the engine's environment of the GPU host. Then put the output folder
on PYTHONPATH; the engine's decoder and the `natten_` solutions find it there.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import generated_tree  # noqa: F401  (puts scripts/ on the path)
from inference_kernels.cli import print_json, run_main
from inference_kernels.core.errors import DatasetError, EnvironmentMissing
from inference_kernels.core.files import read_text, write_text
from inference_kernels.core.hashing import sha256_file

VERSION = "0.21.7"
SDIST_SHA256 = "8417236b74db079b2d23899ec8f77514fb2dc73d4bbd6b346a45b6967fc05ffb"
GENERATOR, BINDINGS = "scripts/autogen_hopper_fna.py", "csrc/natten.cpp"
COMPILED = ("hopper_na3d_forward", "token_permute_3d", "token_unpermute_3d")
SOURCES = (
    "csrc/natten.cpp",
    "csrc/src/hopper_fna_forward.cu",
    "csrc/src/token_permute.cu",
    "csrc/src/token_unpermute.cu",
)
INCLUDES = ("csrc/include", "csrc/autogen/include", "third_party/cutlass/include")
DEFINES = ("-DNATTEN_WITH_CUTLASS", "-DNATTEN_WITH_HOPPER_FNA=1", "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1")
# torch's default flags switch off conversions that CUTLASS needs.
CUDA_FLAGS = (
    "-O3",
    "-DNDEBUG",
    "--use_fast_math",
    "--extended-lambda",
    "--expt-relaxed-constexpr",
    "-Xfatbin",
    "-compress-all",
    *(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    ),
)


class BuildError(DatasetError):
    """Sources that are not those of the pinned release, or a build that failed."""


@dataclass(frozen=True)
class Edit:
    """One replacement that must apply exactly once. pattern: a regular expression over lines."""

    file: str
    pattern: str
    replacement: str


def edits() -> list[Edit]:
    """List the cuts: other ranks, dtypes, head sizes and causal masks; one- and two-dimensional entry points."""
    cuts = [
        Edit(GENERATOR, r"NA_DIMS = \[1, 2, 3\]", "NA_DIMS = [3]"),
        Edit(GENERATOR, r"SUPPORTED_DTYPES = \[\s*Half,\s*BFloat,\s*\]", "SUPPORTED_DTYPES = [BFloat]"),
        Edit(GENERATOR, r"HEAD_DIMS = \[32, 64, 128, 256\]", "HEAD_DIMS = [64]"),
        Edit(GENERATOR, r"CAUSAL_MASKS = \{.*?\n    \}\n", "CAUSAL_MASKS = {3: [(False, False, False)]}\n"),
    ]
    for source, function in zip(SOURCES[1:], ("hopper_na{}d_forward", "token_permute_{}d", "token_unpermute_{}d")):
        cuts += [Edit(source, rf"\nvoid {function.format(rank)}\(.*?\n\}}\n", "\n") for rank in (1, 2)]
    return cuts


def build(output: Path, source: Path | None, report: Callable[[str], None]) -> Path:
    """Build into the new folder `output`, for PYTHONPATH; return the extension's path.

    source: the release's sdist, downloaded by pip if None. BuildError for other sources or a failed build,
    EnvironmentMissing without a compiler.
    """
    if output.exists():
        raise BuildError(
            expected="a new folder", found="one that exists", where=str(output), remedy="choose another --output"
        )
    require_compiler()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="natten-", dir=output.parent) as name:
        work = Path(name)
        tree = unpack(source or download(work), work)
        trim(tree)
        report(f"compiling NATTEN {VERSION} for sm_90a: several minutes")
        extension = compile_extension(tree, work)
        package(tree, extension, work / "package")
        (work / "package").rename(output)
    return output / "natten" / extension.name


def require_compiler() -> None:
    """Raise EnvironmentMissing without torch for CUDA or without nvcc."""
    from torch.utils.cpp_extension import CUDA_HOME
    from torch.version import cuda

    if cuda is None or CUDA_HOME is None:
        raise EnvironmentMissing(
            expected="torch for CUDA and nvcc",
            where=sys.executable,
            found="torch for CPU" if cuda is None else "no nvcc",
            remedy="use the engine's environment, and set CUDA_HOME",
        )


def download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary=:all:",
        "--dest",
        str(folder),
        f"natten=={VERSION}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    found = sorted(folder.glob("natten-*.tar.gz"))
    if not found:
        raise BuildError(
            expected=f"the sources of natten=={VERSION}",
            where="pip download",
            found=(done.stderr.strip().splitlines() or ["nothing"])[-1],
            remedy="download them elsewhere and pass --source",
        )
    return found[0]


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack the archive and return its tree; BuildError if it is not the pinned release."""
    found = sha256_file(sdist)
    if found != SDIST_SHA256:
        raise BuildError(
            expected=f"SHA-256 {SDIST_SHA256}",
            found=found,
            where=str(sdist),
            remedy=f"use natten-{VERSION}.tar.gz of PyPI",
        )
    with tarfile.open(sdist) as archive:
        # Python before 3.11.4 knows no filters; the archive's hash is known either way.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / f"natten-{VERSION}"


def trim(tree: Path) -> None:
    """Cut the sources of an unpacked release and let its generator write the remaining kernels."""
    for edit in edits():
        path = tree / edit.file
        text, count = re.subn(edit.pattern, edit.replacement, read_text(path), flags=re.DOTALL)
        if count != 1:
            raise BuildError(
                expected=f"one place with {edit.pattern!r}",
                found=str(count),
                where=str(path),
                remedy=f"use the sources of natten=={VERSION}",
            )
        write_text(path, text)
    write_text(tree / BINDINGS, bindings(read_text(tree / BINDINGS)))
    done = subprocess.run(
        [sys.executable, GENERATOR, "--num-splits", "2", "-o", "csrc"], cwd=tree, capture_output=True, text=True
    )
    if done.returncode:
        raise BuildError(
            expected="generated kernels",
            found=(done.stderr.strip().splitlines() or ["no message"])[-1],
            where=str(tree / GENERATOR),
            remedy="see the generator's message",
        )


def bindings(text: str) -> str:
    """Bind the compiled functions. NATTEN imports all names at once, so the others exist and raise."""
    names = re.findall(r'm\.def\(\s*"(\w+)"', text)
    lines = [
        f'  m.def("{name}", &natten::{name});' if name in COMPILED else f'  leave_out(m, "{name}");' for name in names
    ]
    return (
        """#include <torch/extension.h>
#include <natten/hopper_fna.h>
#include <natten/token_permute.h>

static void leave_out(pybind11::module_& m, const std::string& name) {
  m.def(name.c_str(), [name](pybind11::args, pybind11::kwargs) {
    throw std::runtime_error(name + " was left out of this build of NATTEN");
  });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
"""
        + "\n".join(lines)
        + "\n}\n"
    )


def compile_extension(tree: Path, folder: Path) -> Path:
    """Build the extension module with torch's tools; BuildError with the compiler's first error."""
    from torch.utils.cpp_extension import load

    os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0a"
    sources = [tree / name for name in SOURCES] + sorted(tree.glob("csrc/autogen/src/cuda/hopper_fna/*.cu"))
    made = folder / "objects"
    made.mkdir()
    try:
        load(
            name="libnatten",
            sources=[str(path) for path in sources],
            build_directory=str(made),
            extra_cflags=["-O2", *DEFINES],
            extra_cuda_cflags=[*CUDA_FLAGS, *DEFINES],
            extra_include_paths=[*(str(tree / name) for name in INCLUDES), *library_headers()],
            is_python_module=False,
        )
    except RuntimeError as error:
        raise BuildError(
            expected="a build without errors",
            found=first_error(str(error)),
            where=str(tree),
            remedy="check that nvcc fits this torch (CUDA_HOME)",
        ) from error
    return (made / "libnatten.so").rename(made / f"libnatten{sysconfig.get_config_var('EXT_SUFFIX')}")


def library_headers() -> list[str]:
    """List folders with CUDA library headers of torch's packages, needed where the toolkit has none."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    if Path(CUDA_HOME, "include", "cusparse.h").exists():
        return []
    return [str(path) for path in sorted(Path(torch.__file__).parents[1].glob("nvidia/*/include"))]


def package(tree: Path, extension: Path, folder: Path) -> None:
    """Assemble NATTEN's Python files, the extension, and the metadata that importlib reads."""
    shutil.copytree(tree / "src" / "natten", folder / "natten")
    shutil.copy2(extension, folder / "natten" / extension.name)
    about = folder / f"natten-{VERSION}.dist-info"
    about.mkdir()
    shutil.copy2(tree / "PKG-INFO", about / "METADATA")
    for name in ("LICENSE", "NOTICE"):
        shutil.copy2(tree / name, about / name)


def first_error(text: str) -> str:
    """Find the first line of a compiler's output with an error; otherwise take the last line."""
    lines = text.strip().splitlines()
    return next((line for line in lines if "error:" in line), lines[-1])


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("--output", required=True, type=Path, metavar="DIR", help="new folder")
    add("--source", type=Path, metavar="FILE", help=f"natten-{VERSION}.tar.gz (default: pip downloads it)")
    return result


def main() -> int:
    options = parser().parse_args()
    extension = build(options.output, options.source, lambda line: print(line, file=sys.stderr, flush=True))
    print_json({"extension": str(extension), "use": f"export PYTHONPATH={options.output.resolve()}"})
    return 0


if __name__ == "__main__":
    run_main(main)
