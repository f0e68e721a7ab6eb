"""Damaged tensor files: each damage to a sound tree, and the finding it must produce."""

import hashlib
import os
import struct
from pathlib import Path

from helpers.corruption import Table
from helpers.toy import NAME
from helpers.toy_tree import CAPTURES, WORKLOADS, Tree, tensor_file, with_header
from inference_kernels.core.layout import POINTER_FIRST_LINE, BlobPath

CASES = Table()
ENTRY = '{"dtype":"BF16","shape":[%d,8],"data_offsets":[0,%d]}'


def pointer(sha256: str, size: int = 4096) -> bytes:
    return POINTER_FIRST_LINE + f"\noid sha256:{sha256}\nsize {size}\n".encode()


def x_bytes(tree: Tree) -> bytes:
    """The data of input x of workload line 1: bfloat16 [N, 8]."""
    return tree.input("x").read_bytes()[-16 * tree.axis() :]


@CASES.add("pointer file", "note", NAME, "1 of 9 not fetched: Git LFS pointers to 4,096 bytes; git lfs pull --include")
def pointer_file(tree: Tree) -> None:
    path = tree.input("x")
    path.write_bytes(pointer(path.stem))


@CASES.add("pointer to another object", "error", "blob/workloads/", "a pointer to")
def pointer_to_another(tree: Tree) -> None:
    tree.input("x").write_bytes(pointer("0" * 64))


@CASES.add("broken pointer", "error", "blob/workloads/", "a broken pointer")
def broken_pointer(tree: Tree) -> None:
    tree.input("x").write_bytes(POINTER_FIRST_LINE + b"\noid sha256:12\n")


@CASES.add("pointer in generated", "error", "blob/generated/", "blob/generated is not in Git LFS")
def pointer_in_generated(tree: Tree) -> None:
    path = tree.input("weight")
    path.write_bytes(pointer(path.stem))


@CASES.add("truncated data", "error", "blob/workloads/", "a truncated file")
def truncated(tree: Tree) -> None:
    os.truncate(tree.input("x"), tree.input("x").stat().st_size - 2)


@CASES.add("truncated header", "error", "blob/workloads/", "a truncated file of 20 bytes")
def truncated_header(tree: Tree) -> None:
    os.truncate(tree.input("x"), 20)


@CASES.add("shorter than a header length", "error", "blob/workloads/", "a file of 3 bytes")
def three_bytes(tree: Tree) -> None:
    os.truncate(tree.input("x"), 3)


@CASES.add("empty file", "error", "blob/workloads/", "an empty file")
def empty(tree: Tree) -> None:
    os.truncate(tree.input("x"), 0)


@CASES.add("one bit flipped", "error", "blob/workloads/", "content of the hash in the file name")
def bit_flipped(tree: Tree) -> None:
    path = tree.input("x")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@CASES.add("wrong dtype", "error", f"{WORKLOADS}:1", "8] bfloat16; found", "float16 in blob/workloads/")
def wrong_dtype(tree: Tree) -> None:
    tree.readdress("x", tensor_file("float16", (tree.axis(), 8), x_bytes(tree)))


@CASES.add("wrong shape", "error", f"{WORKLOADS}:1", "expected x [", "found [8, ")
def wrong_shape(tree: Tree) -> None:
    tree.readdress("x", tensor_file("bfloat16", (8, tree.axis()), x_bytes(tree)))


@CASES.add("wrong shape of an output", "error", f"{CAPTURES}:", "expected outputs.y [", "import the workload again")
def wrong_output_shape(tree: Tree) -> None:
    path = tree.output("y")
    content = tensor_file("bfloat16", (8, tree.axis()), path.read_bytes()[-16 * tree.axis() :])
    blob = write_blob(tree, content)
    path.unlink()
    tree.edit_record(lambda record: record["outputs"]["y"].update(path=blob))


def write_blob(tree: Tree, content: bytes) -> str:
    blob = str(BlobPath("workloads", NAME, hashlib.sha256(content).hexdigest()))
    (tree.root / blob).write_bytes(content)
    return blob


@CASES.add("trailing bytes", "error", "blob/workloads/", "trailing bytes")
def trailing(tree: Tree) -> None:
    tree.readdress("x", tree.input("x").read_bytes() + b"\0\0")


def header_case(label: str, header: str, *fragments: str) -> None:
    """A file whose header is `header`, with the right amount of data; %d, %d stand for rows and bytes."""

    def corrupt(tree: Tree) -> None:
        text = header % (tree.axis(), 16 * tree.axis()) if "%d" in header else header
        tree.readdress("x", with_header(text.encode(), x_bytes(tree)))

    CASES.add(label, "error", "blob/workloads/", *fragments)(corrupt)


header_case("wrong key", '{"x":' + ENTRY + "}", "exactly one tensor, under the key 'tensor'", "key 'x'")
header_case(
    "two tensors",
    '{"tensor":' + ENTRY + ',"more":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}}',
    "exactly one tensor",
    "2 entries: tensor, more",
)
header_case("one key twice", '{"tensor":0,"tensor":' + ENTRY + "}", "repeated key 'tensor'")
header_case("metadata", '{"__metadata__":{"format":"pt"},"tensor":' + ENTRY + "}", "and no metadata")
header_case("empty header", "{}", "exactly one tensor", "0 entries")
header_case("header is no JSON", "<html>", "a JSON header")
header_case("header of zero bytes", "", "a JSON header")
header_case("header is a list", '["tensor"]', "a JSON object as header; found list")
header_case("header of endless nesting", '{"tensor":' + "[" * 100_000, "a JSON header", "recursion")
header_case("tensor entry is a number", '{"tensor":5}', "dtype, shape and data_offsets")
header_case("unknown dtype", '{"tensor":' + ENTRY.replace("BF16", "F64") + "}", "of a known dtype")
header_case("dtype is a list", '{"tensor":' + ENTRY.replace('"BF16"', "[]") + "}", "of a known dtype")
header_case("negative size", '{"tensor":{"dtype":"BF16","shape":[-1,-8],"data_offsets":[0,16]}}', "of a known dtype")
header_case("fractional size", '{"tensor":' + ENTRY.replace("%d,8", "%d,8.0") + "}", "of a known dtype")
header_case(
    "huge sizes",
    '{"tensor":{"dtype":"BF16","shape":[1000000000000,1000000000000],"data_offsets":[0,16]}}',
    "bytes of data for BF16",
    "offsets 0..16",
)
header_case(
    "text as size", '{"tensor":{"dtype":"BF16","shape":[1000000000000,"a"],"data_offsets":[0,16]}}', "of a known dtype"
)
header_case("offsets off", '{"tensor":' + ENTRY.replace("[0,%d]", "[8,%d]") + "}", "offsets 8..")


@CASES.add("absurd header length", "error", "blob/workloads/", "a header length of", "not a safetensors file")
def absurd_length(tree: Tree) -> None:
    content = tree.input("x").read_bytes()
    tree.readdress("x", struct.pack("<Q", 2**63) + content[8:])


@CASES.add("header longer than the file", "error", "blob/workloads/", "a header of 99,999,999 bytes")
def long_header(tree: Tree) -> None:
    content = tree.input("x").read_bytes()
    tree.readdress("x", struct.pack("<Q", 99_999_999) + content[8:])


@CASES.add("text under a tensor's name", "error", "blob/workloads/", "not a safetensors file")
def text_file(tree: Tree) -> None:
    tree.readdress("x", b"<!DOCTYPE html><html><body>404: not found</body></html>")


@CASES.add("missing file", "error", f"{WORKLOADS}:1", "x at blob/workloads/", "no such file")
def missing(tree: Tree) -> None:
    tree.input("x").unlink()


@CASES.add("missing output", "error", f"{CAPTURES}:", "outputs.y at blob/workloads/", "no such file")
def missing_output(tree: Tree) -> None:
    tree.output("y").unlink()


@CASES.add("generated weight absent", "note", NAME, "1 not materialised", "materialize_seeded.py --definition")
def not_materialised(tree: Tree) -> None:
    tree.input("weight").unlink()


@CASES.add("unreferenced file", "error", "blob/workloads/", "a blob that a workload or record names", "unreferenced")
def unreferenced(tree: Tree) -> None:
    write_blob(tree, tensor_file("int8", (4,), b"\1\2\3\4"))


@CASES.add("unreferenced generated file", "warning", "blob/generated/", "an unreferenced one", "or delete it")
def unreferenced_generated(tree: Tree) -> None:
    blob = Path(write_blob(tree, tensor_file("int8", (4,), b"\1\2\3\4")))
    (tree.root / blob).rename(tree.root / "blob" / "generated" / NAME / blob.name)


@CASES.add("one folder too deep", "error", "/deeper/", "not a canonical blob path", errors=2)
def one_folder_deeper(tree: Tree) -> None:
    path = tree.input("x")
    (path.parent / "deeper").mkdir()
    path.rename(path.parent / "deeper" / path.name)


@CASES.add("foreign file", "error", "blob/workloads/notes.txt", "not a canonical blob path")
def foreign_file(tree: Tree) -> None:
    (tree.root / "blob" / "workloads" / "notes.txt").write_text("remember")


@CASES.add("leftover of a kill", "warning", "blob/workloads/", "a leftover of a killed import", "import again")
def leftover(tree: Tree) -> None:
    (tree.root / "blob" / "workloads" / NAME / ".tmp-abc").write_bytes(b"half")


@CASES.add("link inside the root", "error", "blob/workloads/", "a symbolic link")
def link_inside(tree: Tree) -> None:
    path = tree.input("x")
    path.rename(tree.root / "x.safetensors")
    path.symlink_to(tree.root / "x.safetensors")


@CASES.add("named pipe", "error", "blob/workloads/", "a regular file")
def named_pipe(tree: Tree) -> None:
    path = tree.input("x")
    path.unlink()
    os.mkfifo(path)


@CASES.add("folder under a tensor's name", "error", f"{WORKLOADS}:1", "no such file")
def folder(tree: Tree) -> None:
    path = tree.input("x")
    path.unlink()
    path.mkdir()
