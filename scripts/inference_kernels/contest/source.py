"""Read the gated delta workloads of the MLSys 2026 FlashInfer contest from a copy of its dataset.

    definitions/gdn/<name>.json          the contest's contract, compared with ours if it is there
    workloads/gdn/<name>.jsonl           one Trace line per workload
    blob/workloads/gdn/<name>_<id>.safetensors            two layouts; a line's paths say which.
    blob/workloads/gdn/<name>/<name>_<id>.safetensors     One file holds all tensors of a workload.

All checks read JSON and tensor headers only, no tensor data.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_kernels.core.definitions import const_axes, infer_axes, load_definition, tensor_inputs, var_axes
from inference_kernels.core.errors import (
    DatasetError,
    EnvironmentMissing,
    ImportRefused,
    PointerError,
    SchemaError,
    TensorFileError,
)
from inference_kernels.core.files import read_json, read_jsonl
from inference_kernels.core.hashing import sha256_file
from inference_kernels.core.layout import read_pointer, workload_file
from inference_kernels.core.schema import workload_errors
from inference_kernels.core.tensors import DTYPES, TRACE_NAMES

DATASET = "flashinfer-ai/mlsys26-contest"
PATTERNS = ("definitions/gdn/*.json", "workloads/gdn/*.jsonl", "blob/workloads/gdn/*")
# The only publicly cited revision; the counts are those reported for it.
REVISION = "5e832ce88dd1013032b22a0e942979d7d2769cc3"
EXPECTED = {"gdn_decode_qk4_v8_d128_k_last": 54, "gdn_prefill_qk4_v8_d128_k_last": 100}
# Inputs that a contest workload may lack, because its operator then starts from zeros.
OPTIONAL = ("state",)
AS_PUBLISHED = "use the dataset as it was published"


@dataclass(frozen=True)
class ContestWorkload:
    """One workload of the contest, restricted to the inputs of our definition.

    tensors: input -> (file, key in the file); scalars: input -> value. zeros: optional inputs it lacks.
    dropped: inputs that the definition lacks. file, line: its place in the dataset.
    """

    definition: dict
    uuid: str
    axes: dict[str, int]
    tensors: dict[str, tuple[Path, str]]
    scalars: dict[str, Any]
    zeros: tuple[str, ...]
    dropped: tuple[str, ...]
    file: str
    line: int

    @property
    def where(self) -> str:
        """Name the workload's place in the dataset, for errors."""
        return f"{self.file}:{self.line} (contest workload {self.uuid})"

    @property
    def case(self) -> str:
        """Name the workload's case in a capture run."""
        return f"{self.definition['name']}:{self.uuid}"

    @property
    def tensor_bytes(self) -> int:
        """Sum the bytes of the tensors that an import keeps or writes, without headers."""
        sizes = const_axes(self.definition) | self.axes
        return sum(
            math.prod(sizes[axis] for axis in spec["shape"]) * DTYPES[spec["dtype"]][1]
            for _, spec in tensor_inputs(self.definition)
        )


def _refuse(expected: str, found: str, where: Path | str, remedy: str) -> ImportRefused:
    return ImportRefused(expected=expected, found=found, where=str(where), remedy=remedy)


def read_tree(tree: Path, root: Path) -> list[ContestWorkload]:
    """Read all gated delta workloads of the copy `tree` and check them against the definitions of `root`.

    ImportRefused, SchemaError, PointerError or TensorFileError for the first that cannot be imported.
    """
    found: list[ContestWorkload] = []
    for name in EXPECTED:
        definition = load_definition(root, name)
        _same_contract(tree, definition)
        found += _read_workloads(tree, definition)
    cases = [workload.case for workload in found]
    for workload in found:
        if cases.count(workload.case) > 1:
            raise _refuse("a UUID that occurs once", "the same UUID again", workload.where, AS_PUBLISHED)
    return found


def workload_digests(tree: Path, root: Path) -> dict[str, str]:
    """Hash each workload file of the copy: with the dataset's revision they identify an import's source."""
    paths = [workload_file(tree, load_definition(root, name)) for name in EXPECTED]
    return {path.relative_to(tree).as_posix(): sha256_file(path) for path in paths}


def _same_contract(tree: Path, definition: dict) -> None:
    """Check that the contest's definition, if present, describes the same tensors as ours."""
    path = tree / "definitions" / definition["op_type"] / f"{definition['name']}.json"
    if not path.exists():
        return
    try:
        theirs, ours = _contract(read_json(path)), _contract(definition)
    except (KeyError, TypeError, AttributeError) as error:
        raise _refuse(
            "a definition with axes, inputs and outputs", repr(error), path, "fetch the dataset again"
        ) from error
    for item in sorted(set(theirs) | set(ours)):
        if theirs.get(item) != ours.get(item):
            raise _refuse(
                f"{item} {ours.get(item)}, as in our definition",
                f"{theirs.get(item)}",
                path,
                "the contracts differ: compare the definitions before importing",
            )


def _contract(definition: dict) -> dict[str, Any]:
    parts = {f"axis {name}": (axis["type"], axis.get("value")) for name, axis in definition["axes"].items()}
    for group in ("inputs", "outputs"):
        for name, spec in definition[group].items():
            parts[f"{group[:-1]} {name}"] = (spec["shape"] and list(spec["shape"]), spec["dtype"])
    return parts


def _read_workloads(tree: Path, definition: dict) -> Iterator[ContestWorkload]:
    path = workload_file(tree, definition)
    if not path.exists():
        raise _refuse(f"a copy of {DATASET}", "no such file", path, "pass the folder that holds its workloads/")
    for number, row in read_jsonl(path):
        yield _read_line(tree, definition, row, path.relative_to(tree).as_posix(), number)


def _read_line(tree: Path, definition: dict, row: dict, file: str, line: int) -> ContestWorkload:
    where, workload = f"{file}:{line}", row.get("workload")
    formed = (
        isinstance(workload, dict)
        and isinstance(workload.get("uuid"), str)
        and isinstance(workload.get("axes"), dict)
        and isinstance(workload.get("inputs"), dict)
        and all(isinstance(item, dict) for item in workload["inputs"].values())
    )
    evaluated = row.get("solution") or row.get("evaluation")
    if not formed or evaluated or row.get("definition") != definition["name"]:
        raise _refuse(f"a workload of {definition['name']}: uuid, axes, inputs", "something else", where, AS_PUBLISHED)
    where = f"{where} (contest workload {workload['uuid']})"
    kept = {name: workload["inputs"][name] for name in definition["inputs"] if name in workload["inputs"]}
    absent = [name for name in definition["inputs"] if name not in kept]
    for name in absent:
        if name not in OPTIONAL:
            raise _refuse(f"an input {name}", "none", where, "the contract does not let it be absent")
    tensors, scalars = _split_inputs(tree, definition, kept, where)
    axes = _checked_axes(definition, tensors, absent, workload["axes"], where)
    dropped = tuple(name for name in workload["inputs"] if name not in definition["inputs"])
    return ContestWorkload(definition, workload["uuid"], axes, tensors, scalars, tuple(absent), dropped, file, line)


def _split_inputs(
    tree: Path, definition: dict, kept: dict[str, dict], where: str
) -> tuple[dict[str, tuple[Path, str]], dict[str, Any]]:
    tensors, scalars = {}, {}
    for name, item in kept.items():
        wanted = "scalar" if definition["inputs"][name]["shape"] is None else "safetensors"
        if item.get("type") != wanted:
            raise _refuse(
                f"input {name} of type {wanted}",
                f"type {item.get('type')!r}",
                where,
                "only captured values are imported, nothing random",
            )
        if wanted == "scalar":
            scalars[name] = item.get("value")
        else:
            tensors[name] = _tensor_place(tree, item, where), item["tensor_key"]
    return tensors, scalars


def _tensor_place(tree: Path, item: dict, where: str) -> Path:
    """Find the file that a line's path names; the contest's own paths start with `./`."""
    text, key = item.get("path"), item.get("tensor_key")
    if not isinstance(text, str) or not isinstance(key, str):
        raise _refuse("a path and a tensor_key", f"{item}"[:100], where, AS_PUBLISHED)
    parts = text.removeprefix("./").split("/")
    if parts[:2] != ["blob", "workloads"] or {"", ".", ".."} & set(parts) or "\\" in text:
        raise _refuse("a path below blob/workloads/", repr(text), where, AS_PUBLISHED)
    path = tree.joinpath(*parts)
    if not path.is_file():
        raise _refuse("a tensor file", f"no {text}", where, "fetch the rest of the dataset")
    return path


def _checked_axes(
    definition: dict, tensors: dict[str, tuple[Path, str]], absent: list[str], declared: dict[str, Any], where: str
) -> dict[str, int]:
    """Derive the variable axes from the tensors' shapes; dtypes and declared axes must agree."""
    for axis in var_axes(definition):
        if type(declared.get(axis)) is not int or declared[axis] < 0:
            raise _refuse(f"an integer >= 0 for axis {axis}", repr(declared.get(axis)), where, AS_PUBLISHED)
    forms = {name: tensor_form(path, key) for name, (path, key) in tensors.items()}
    sizes = declared | const_axes(definition)
    shapes = {}
    for name, spec in tensor_inputs(definition):
        if name in absent:
            shapes[name] = tuple(sizes[axis] for axis in spec["shape"])
        elif forms[name][1] != spec["dtype"]:
            raise _refuse(f"{name} of dtype {spec['dtype']}", forms[name][1], where, "compare the contracts")
        else:
            shapes[name] = forms[name][0]
    try:
        axes = infer_axes(definition, shapes, where)
    except DatasetError as error:
        raise _refuse(error.expected, error.found, where, AS_PUBLISHED) from error
    if {name: declared[name] for name in axes} != axes:
        raise _refuse(f"the axes of the tensors, {axes}", f"{declared}", where, AS_PUBLISHED)
    return axes


def tensor_form(path: Path, key: str) -> tuple[tuple[int, ...], str]:
    """Read shape and Trace dtype of one tensor of a file. PointerError, TensorFileError."""
    with open_tensors(path, "np") as stream:
        if key not in set(stream.keys()):
            raise _damaged(path, f"a tensor {key!r}", f"only {', '.join(sorted(stream.keys()))[:100]}")
        view = stream.get_slice(key)
        dtype = TRACE_NAMES.get(view.get_dtype())
        return tuple(view.get_shape()), dtype[0] if dtype else view.get_dtype()


def open_tensors(path: Path, framework: str) -> Any:
    """Open a safetensors file as a context manager. PointerError, TensorFileError."""
    pointer = read_pointer(path)
    if pointer:
        raise PointerError(
            expected="tensor bytes",
            found=f"a Git LFS pointer to {pointer.size:,} bytes",
            where=str(path),
            remedy="fetch it in the contest's copy: git lfs pull",
        )
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework=framework)
    except SafetensorError as error:
        raise _damaged(path, "a file that the safetensors library reads", str(error)) from error


def _damaged(path: Path, expected: str, found: str) -> TensorFileError:
    return TensorFileError(expected=expected, found=found, where=str(path), remedy="fetch the file again")


def line_errors(source: ContestWorkload, workload: dict[str, Any]) -> None:
    """Raise ImportRefused if a workload to be written breaks the rules for workloads."""
    for error in workload_errors(workload, source.definition, source.where):
        raise _refuse(error.expected, error.found, source.where, error.remedy)


def require_commit(revision: str) -> None:
    """Raise SchemaError unless `revision` is a full commit hash: a branch would pin nothing."""
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise SchemaError(
            expected="a commit of 40 hex digits",
            found=revision,
            where="--revision",
            remedy="take the commit from the dataset's history on the Hub",
        )


def download(revision: str, folder: Path) -> Path:
    """Fetch the files of PATTERNS into `folder` and return it; files already there are not fetched again.

    EnvironmentMissing without huggingface_hub, or with the Hub's own words if the download fails.
    """
    require_commit(revision)
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise EnvironmentMissing(
            expected="the Python package huggingface_hub",
            found="not installed",
            where="Hugging Face Hub",
            remedy="pip install huggingface_hub, or pass a copy with --source",
        ) from error
    try:
        snapshot_download(
            DATASET, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=list(PATTERNS)
        )
    except Exception as error:
        # Without a network the library's own HTTP client raises: httpx in version 1, httpx2 in version 2.
        if not (isinstance(error, OSError) or type(error).__module__.split(".")[0] in ("httpx", "httpx2")):
            raise
        raise EnvironmentMissing(
            expected=f"{DATASET} at {revision}",
            found=str(error).splitlines()[0],
            where="Hugging Face Hub",
            remedy="check the network and run this command again, it resumes; or pass a copy with --source",
        ) from error
    return folder
