"""One tensor, one safetensors file: strict header reading, byte-exact saving, loading.

The header is parsed here (standard library) so that every kind of damage has its own message and no tensor is
read for its shape. Format: https://github.com/huggingface/safetensors (8-byte length, JSON header, data).
"""

import hashlib
import json
import math
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import PointerError, SchemaError, TensorFileError
from inference_kernels.core.files import atomic_writer, parse_json, regular_size
from inference_kernels.core.layout import TENSOR_KEY, read_pointer

if TYPE_CHECKING:
    import torch

# Trace dtype -> (safetensors name, bytes per element). The Trace schema has neither unsigned types nor E8M0:
# such bytes are stored as int8 with their bit patterns unchanged.
DTYPES = {
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "bool": ("BOOL", 1),
}
TRACE_NAMES = {name: (trace, size) for trace, (name, size) in DTYPES.items()}
# The limit of the safetensors library; a larger length means that the file is something else.
HEADER_LIMIT = 100_000_000
# One tensor's header takes some hundred bytes; a longer one is not parsed.
OWN_HEADER_LIMIT = 2**20
DIMENSION_LIMIT, SIZE_LIMIT = 64, 2**62
# Files reach a GPU through pinned host memory: bytes per reader, and readers per large file. On an H200 host 4.5 GB
# from the page cache took 0.12 s like this, 0.2 s with four readers of 16 MiB, 0.10 s with twelve of 8 MiB.
PIECE_BYTES = 2**22
READERS = 8


@dataclass(frozen=True)
class TensorHeader:
    """The header of a one-tensor file: dtype by its Trace name, shape, bytes of data and their offset in the file."""

    dtype: str
    shape: tuple[int, ...]
    data_bytes: int
    data_begins: int


def _damaged(path: Path, expected: str, found: str) -> TensorFileError:
    return TensorFileError(expected=expected, found=found, where=str(path), remedy="fetch or capture the file again")


def read_header(path: Path) -> TensorHeader:
    """Read and check the header of the one-tensor file `path` without touching its data.

    PointerError for a Git LFS pointer; TensorFileError for an empty, truncated, overlong or foreign file, more
    than one tensor, metadata, a key other than `tensor`, or a size that contradicts shape and dtype.
    """
    pointer = read_pointer(path)
    if pointer:
        raise PointerError(
            expected="tensor bytes",
            found=f"a Git LFS pointer to {pointer.size:,} bytes",
            where=str(path),
            remedy="fetch it: git lfs pull",
        )
    size = _size(path)
    if size == 0:
        raise _damaged(path, "a safetensors file", "an empty file")
    with open(path, "rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            raise _damaged(path, "an 8-byte header length", f"a file of {size} bytes")
        (length,) = struct.unpack("<Q", start)
        if length > HEADER_LIMIT:
            raise _damaged(path, "a safetensors header", f"a header length of {length:,}: not a safetensors file")
        if 8 + length > size:
            raise _damaged(path, f"a header of {length:,} bytes", f"a truncated file of {size:,} bytes")
        if length > OWN_HEADER_LIMIT:
            raise _damaged(path, f"the header of one tensor, at most {OWN_HEADER_LIMIT:,} bytes", f"{length:,} bytes")
        raw = stream.read(length)
    return _checked_header(path, raw, size - 8 - length)


def _size(path: Path) -> int:
    try:
        return regular_size(path)
    except SchemaError as error:
        raise _damaged(path, error.expected, error.found) from error


def _checked_header(path: Path, raw: bytes, data_bytes: int) -> TensorHeader:
    try:
        header = parse_json(raw.decode(), str(path))
    except (UnicodeDecodeError, SchemaError) as error:
        found = error.found if isinstance(error, SchemaError) else str(error)
        raise _damaged(path, "a JSON header", found) from error
    if not isinstance(header, dict):
        raise _damaged(path, "a JSON object as header", type(header).__name__)
    names = list(header)
    if names != [TENSOR_KEY]:
        found = f"{len(names)} entries: {', '.join(names)[:100]}" if len(names) != 1 else f"key {names[0]!r}"
        raise _damaged(path, f"exactly one tensor, under the key {TENSOR_KEY!r}, and no metadata", found)
    entry = header[TENSOR_KEY]
    if not _well_formed(entry):
        raise _damaged(path, "dtype, shape and data_offsets of a known dtype", f"{entry}"[:200])
    trace, item = TRACE_NAMES[entry["dtype"]]
    expected, (begin, end) = math.prod(entry["shape"]) * item, entry["data_offsets"]
    if (begin, end) != (0, expected):
        raise _damaged(
            path, f"{expected:,} bytes of data for {entry['dtype']} {entry['shape']}", f"offsets {begin}..{end}"
        )
    if data_bytes != expected:
        kind = "a truncated file" if data_bytes < expected else "trailing bytes"
        raise _damaged(path, f"{expected:,} bytes of data", f"{data_bytes:,}: {kind}")
    return TensorHeader(trace, tuple(entry["shape"]), data_bytes, 8 + len(raw))


def _well_formed(entry: Any) -> bool:
    """Check for dtype, shape and data_offsets of the format's types, and nothing else."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return False
    shape, offsets = entry["shape"], entry["data_offsets"]
    counts = (
        isinstance(shape, list)
        and isinstance(offsets, list)
        and len(offsets) == 2
        and len(shape) <= DIMENSION_LIMIT
        and all(type(number) is int and 0 <= number <= SIZE_LIMIT for number in shape + offsets)
    )
    return counts and isinstance(entry["dtype"], str) and entry["dtype"] in TRACE_NAMES


def tensor_file_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Write the header of a one-tensor file, byte for byte as the safetensors library does (a test compares).

    A file's name is its hash, which must not depend on a library's version.
    """
    name, item = DTYPES[dtype]
    text = json.dumps(
        {TENSOR_KEY: {"dtype": name, "shape": list(shape), "data_offsets": [0, math.prod(shape) * item]}},
        separators=(",", ":"),
    )
    padded = text.encode() + b" " * (-len(text) % 8)
    return struct.pack("<Q", len(padded)) + padded


def raw_bytes(tensor: "torch.Tensor") -> memoryview:
    """Return the bytes of a tensor of any dtype in row-major order, on the host."""
    return memoryview(byte_view(tensor.detach().cpu().resolve_neg().contiguous()).numpy())


def byte_view(tensor: "torch.Tensor") -> "torch.Tensor":
    """View a contiguous tensor as flat bytes, without a copy."""
    import torch

    # A contiguous tensor of one or no element may have any stride; a view as bytes needs 1.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def save_tensor(folder: Path, tensor: "torch.Tensor") -> tuple[str, int]:
    """Write `tensor` to `folder/<sha256>.safetensors` unless it is there; return digest and file size in bytes.

    Strides are not kept: a contiguous copy is stored. TensorFileError for a dtype that Trace cannot name.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TensorFileError(
            expected=f"one of {', '.join(DTYPES)}",
            found=dtype,
            where=str(folder),
            remedy="view unsigned and E8M0 bytes as int8 first",
        )
    parts = tensor_file_header(dtype, tuple(tensor.shape)), raw_bytes(tensor)
    digest = hashlib.sha256(parts[0])
    digest.update(parts[1])
    path = folder / f"{digest.hexdigest()}.safetensors"
    size = sum(map(len, parts))
    if not path.exists() or path.stat().st_size != size:
        with atomic_writer(path) as stream:
            stream.writelines(parts)
    return digest.hexdigest(), size


def load_tensor(path: Path, device: str = "cpu") -> "torch.Tensor":
    """Load the tensor of a one-tensor file to `device`; PointerError or TensorFileError as in `read_header`.

    On the host the file is memory-mapped; unread pages are never loaded.
    """
    header = read_header(path)
    if device != "cpu":
        return _load_through_pinned_memory(path, header, device)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stream:
            tensor: torch.Tensor = stream.get_tensor(TENSOR_KEY)
            return tensor
    except SafetensorError as error:
        raise _damaged(path, "a file that the safetensors library reads", str(error)) from error


def _load_through_pinned_memory(path: Path, header: TensorHeader, device: str) -> "torch.Tensor":
    """Load a file to a GPU without mapping it, which took 3.3 s for an expert bank of 2.4 GB on an H200 host."""
    import torch

    tensor = torch.empty(header.shape, dtype=getattr(torch, header.dtype), device=device)
    readers = max(1, min(READERS, header.data_bytes // PIECE_BYTES))
    staging = torch.empty((readers, min(header.data_bytes, PIECE_BYTES)), dtype=torch.uint8, pin_memory=True)
    fill_from_file(byte_view(tensor), path, header, staging)
    return tensor


def fill_from_file(data: "torch.Tensor", path: Path, header: TensorHeader, staging: "torch.Tensor") -> None:
    """Copy a file's data to the flat bytes `data` through host bytes `staging` [readers, bytes per piece].

    Each reader is a thread with a share of the file: a single one is slower than the copy to a GPU.
    TensorFileError for a file that was cut since its header was read.
    """
    shares = data.split(max(1, -(-len(data) // len(staging))))
    begins = [header.data_begins + sum(map(len, shares[:number])) for number in range(len(shares))]
    with ThreadPoolExecutor(len(shares)) as readers:
        list(readers.map(_fill_share, shares, begins, staging, repeat(path)))


def _fill_share(data: "torch.Tensor", begins: int, staging: "torch.Tensor", path: Path) -> None:
    with open(path, "rb", buffering=0) as stream:
        stream.seek(begins)
        for piece in data.split(max(1, len(staging))):
            plain = staging[: len(piece)]
            view = memoryview(plain.numpy())
            while len(view):
                count = stream.readinto(view)
                if not count:
                    raise _damaged(path, "the bytes that the header announces", "a file cut while it was read")
                view = view[count:]
            piece.copy_(plain)
