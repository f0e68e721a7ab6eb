"""Damaged workloads and capture records: each damage to a sound tree, and the finding it must produce."""

import json
import shutil
from collections.abc import Callable

from helpers.corrupt_blobs import write_blob
from helpers.corruption import Table
from helpers.toy import NAME
from helpers.toy_tree import CAPTURES, WORKLOADS, Tree, tensor_file

CASES = Table()
FIRST = f"{WORKLOADS}:1"


def path_case(label: str, change: Callable[[str], str], *fragments: str, errors: int = 1) -> None:
    def corrupt(tree: Tree) -> None:
        old = tree.input("x").relative_to(tree.root).as_posix()
        tree.edit_workload(lambda workload: workload["inputs"]["x"].update(path=change(old)))

    CASES.add(f"path: {label}", "error", FIRST, *fragments, errors=errors)(corrupt)


path_case("./", lambda path: f"./{path}", "redundant path part")
path_case("..", lambda path: path.replace("blob/", "blob/../blob/", 1), "parent folder")
path_case("absolute", lambda path: f"/data/{path}", "absolute path")
path_case("drive letter", lambda path: f"C:/{path}", "absolute path")
path_case("backslash", lambda path: path.replace("/", "\\"), "backslash", errors=2)
path_case("another definition's folder", lambda path: path.replace(NAME, "other"), f"a blob of {NAME}", "one of other")
path_case("two slashes", lambda path: path.replace("blob/", "blob//"), "redundant path part")
path_case("unknown store", lambda path: path.replace("workloads", "traces"), "not a canonical blob path")
path_case(
    "upper-case hash",
    lambda path: path.replace(".safetensors", "").upper() + ".safetensors",
    "not a canonical blob path",
    errors=3,
)
path_case("line break at the end", lambda path: f"{path}\n", "not a canonical blob path")


@CASES.add(
    "path: link out of the root", "error", FIRST, "a path inside", "replace the symbolic link by the file", errors=2
)
def link_out(tree: Tree) -> None:
    path = tree.input("x")
    outside = tree.root.parent / "outside.safetensors"
    path.rename(outside)
    path.symlink_to(outside)


@CASES.add("path: folder linked out of the root", "error", FIRST, "a path inside", errors=8)
def folder_link(tree: Tree) -> None:
    folder = tree.input("x").parent
    shutil.move(folder, tree.root.parent / "elsewhere")
    folder.symlink_to(tree.root.parent / "elsewhere")


def input_case(label: str, name: str, item: dict | None, *fragments: str, errors: int = 1) -> None:
    """Replace input `name` of workload 1 by `item`, or leave it out; then nothing names its file."""

    def change(inputs: dict) -> None:
        if item is None:
            del inputs[name]
        else:
            inputs[name] = item

    def corrupt(tree: Tree) -> None:
        tree.edit_workload(lambda workload: change(workload["inputs"]))

    CASES.add(label, "error", FIRST, *fragments, errors=errors)(corrupt)


input_case(
    "random input",
    "x",
    {"type": "random"},
    "input x of type safetensors; found type 'random'",
    "only captured values are published",
    errors=2,
)
input_case("untyped input", "x", {}, "input x of type safetensors; found type None", errors=2)
input_case("scalar for a tensor", "ids", {"type": "scalar", "value": 1}, "input ids of type safetensors", errors=2)
input_case("tensor for a scalar", "scale", {"type": "random"}, "input scale of type scalar")
input_case("missing input", "ids", None, "an input ids; found none", errors=2)
input_case("unknown input", "bias", {"type": "scalar", "value": 1}, "inputs of the definition only; found input bias")
input_case(
    "truth value for a float", "scale", {"type": "scalar", "value": True}, "a float32 value of scale; found True"
)


@CASES.add("wrong tensor key", "error", FIRST, "tensor_key 'tensor'; found 'x'")
def tensor_key(tree: Tree) -> None:
    tree.edit_inputs(lambda inputs: inputs["x"].update(tensor_key="x"))


@CASES.add(
    "unknown key in an input",
    "error",
    FIRST,
    "unknown key 'workload.inputs.x.tensor_kye'",
    "did you mean 'tensor_key'?",
    errors=2,
)
def unknown_input_key(tree: Tree) -> None:
    tree.edit_workload(lambda workload: workload["inputs"]["x"].update(tensor_kye="tensor"))


@CASES.add("unknown key in a workload", "error", FIRST, "unknown key 'workload.axis'", "did you mean 'axes'?")
def unknown_workload_key(tree: Tree) -> None:
    tree.edit_workload(lambda workload: workload.update(axis={}))


@CASES.add("misspelt axis", "error", FIRST, "axes ['N']; found ['n']", "name exactly the variable axes")
def misspelt_axis(tree: Tree) -> None:
    tree.edit_workload(lambda workload: workload.update(axes={"n": workload["axes"]["N"]}))


@CASES.add("axis as text", "error", FIRST, "workload.axes.N: '3' is not of type 'integer'")
def axis_text(tree: Tree) -> None:
    tree.edit_workload(lambda workload: workload.update(axes={"N": "3"}))


@CASES.add("wrong axis", "error", FIRST, "expected x [4, 8] bfloat16; found [", errors=4)
def wrong_axis(tree: Tree) -> None:
    tree.edit_workload(lambda workload: workload["axes"].update(N=4))


@CASES.add("axis of zero", "error", FIRST, "expected N >= 1; found N = 0")
def no_rows(tree: Tree) -> None:
    tree.edit_workload(lambda workload: workload["axes"].update(N=0))
    for name, dtype, shape in (("x", "bfloat16", (0, 8)), ("ids", "int32", (0,))):
        tree.readdress(name, tensor_file(dtype, shape, b""))
    for name, dtype, shape in (("y", "bfloat16", (0, 8)), ("count", "int32", (0,))):
        tree.output(name).unlink()
        blob = write_blob(tree, tensor_file(dtype, shape, b""))
        tree.edit_record(lambda record, name=name, blob=blob: record["outputs"][name].update(path=blob))


@CASES.add("false constraint", "error", FIRST, "expected scale > 0; found scale = -0.5", "correct the workload")
def false_constraint(tree: Tree) -> None:
    tree.edit_inputs(lambda inputs: inputs["scale"].update(value=-0.5))


@CASES.add("false constraint that reads an input", "error", FIRST, "all((ids >= 0) & (ids < N))", "max 77")
def false_input_constraint(tree: Tree) -> None:
    rows = tree.axis()
    tree.readdress("ids", tensor_file("int32", (rows,), b"\0" * 4 * (rows - 1) + (77).to_bytes(4, "little")))


@CASES.add("duplicate UUID", "error", f"{WORKLOADS}:3", "a UUID that occurs once", f"again, after {FIRST}")
def duplicate_uuid(tree: Tree) -> None:
    tree.edit_rows(WORKLOADS, lambda rows: rows.append(rows[0]))


EDITED = "00000000-0000-5000-8000-000000000000"


@CASES.add("edited UUID", "error", FIRST, "from the inputs; found " + EDITED, "instead of editing it")
def edited_uuid(tree: Tree) -> None:
    tree.edit_record(lambda record: record.update(workload=EDITED))
    tree.edit_workload(lambda workload: workload.update(uuid=EDITED))


@CASES.add(
    "record without workload", "error", f"{CAPTURES}:", "a workload", "none; import the capture run again", errors=3
)
def without_workload(tree: Tree) -> None:
    tree.edit_rows(WORKLOADS, lambda rows: rows.pop(0))


@CASES.add("workload without record", "error", FIRST, "a capture record of the workload; found none", errors=3)
def without_record(tree: Tree) -> None:
    uuid = tree.rows(WORKLOADS)[0]["workload"]["uuid"]
    tree.edit_rows(CAPTURES, lambda rows: rows.remove(next(row for row in rows if row["workload"] == uuid)))


@CASES.add("two records of one workload", "error", f"{CAPTURES}:3", "one record per workload")
def two_records(tree: Tree) -> None:
    tree.edit_rows(CAPTURES, lambda rows: rows.append(rows[0]))


def record_case(label: str, change: Callable[[dict], None], *fragments: str, errors: int = 1) -> None:
    CASES.add(label, "error", f"{CAPTURES}:", *fragments, errors=errors)(lambda tree: tree.edit_record(change))


record_case(
    "unknown key in a record",
    lambda record: record.update(opreation={}),
    "a capture record of schemas/capture_record.schema.json",
    "'opreation' was unexpected",
    errors=2,
)
record_case("unknown class", lambda record: record.update({"class": "trained"}), "'trained' is not one of", errors=2)
record_case(
    "seeded without seed", lambda record: record["model"].pop("seed"), "'seed' is a required property", errors=2
)
record_case(
    "published without outputs",
    lambda record: record.update({"class": "published", "outputs": {}}),
    "$.outputs",
    errors=4,
)
record_case("record of another definition", lambda record: record.update(definition="other"), "of other; found none")
record_case("failed replay", lambda record: record["replay"].update(passed=False), "replay.passed is false")
record_case(
    "one output short", lambda record: record["outputs"].pop("count"), "outputs ['count', 'y']; found ['y']", errors=2
)
record_case(
    "output outside the root",
    lambda record: record["outputs"]["y"].update(path="../y.safetensors"),
    "parent folder",
    errors=2,
)
record_case(
    "recipe of an unknown input",
    lambda record: record.update(generated={"wieght": record["generated"]["weight"]}),
    "recipes of the inputs",
    "found wieght",
)
record_case(
    "recipe of a scalar",
    lambda record: record["generated"].update(scale=record["generated"]["weight"]),
    "recipes of the inputs",
    "found scale",
)
record_case(
    "broken recipe",
    lambda record: record["generated"]["weight"].update(multiplier=4000),
    "a multiplier of 1..64; found 4000 in the recipe of weight",
)


@CASES.add("generated weight without a recipe", "error", FIRST, "or a recipe of it; found neither")
def no_recipe(tree: Tree) -> None:
    tree.input("weight").unlink()
    for row in (0, 1):
        tree.edit_record(lambda record: record.pop("generated"), row)


for wrong in ([], {}, 5, None):

    @CASES.add(f"record of the definition {wrong!r}", "error", f"{CAPTURES}:", "$.definition", errors=2)
    def no_name(tree: Tree, wrong: object = wrong) -> None:
        tree.edit_record(lambda record: record.update(definition=wrong))


for beyond in ([2**80], [2**30, 2**30]):

    @CASES.add(f"recipe of shape {beyond}", "error", f"{CAPTURES}:", "at most 1,099,511,627,776 elements")
    def huge_recipe(tree: Tree, beyond: object = beyond) -> None:
        tree.edit_record(lambda record: record["generated"]["weight"].update(shape=beyond))


@CASES.add("constant output", "warning", f"{CAPTURES}:", "an output y that depends on its inputs", "the constant 0.0")
def constant_output(tree: Tree) -> None:
    tree.edit_record(lambda record: record["statistics"]["y"].update(min=0.0, max=0.0))


def line_case(label: str, name: str, line: str, *fragments: str, errors: int = 1) -> None:
    """Append a third line to a JSONL file."""

    def corrupt(tree: Tree) -> None:
        with open(tree.root / name, "a") as stream:
            stream.write(line + "\n")

    CASES.add(f"{label} in {name.split('/')[0]}", "error", f"{name}:3", *fragments, errors=errors)(corrupt)


for file in (WORKLOADS, CAPTURES):
    line_case("half a line", file, '{"definition": "to', "valid JSON")
    line_case("blank line", file, "", "valid JSON")
    line_case("a list", file, "[1]", "found list")
    line_case("null", file, "null", "one JSON object per line; found NoneType")
    line_case("an infinite number", file, '{"definition": 1e999}', "1e999 is beyond the finite numbers")
    line_case("a lone surrogate", file, r'{"definition": "\ud800"}', "a lone surrogate")
    line_case("a repeated key", file, '{"definition": 1, "definition": 2}', "repeated key 'definition'")
    line_case("not a number", file, '{"definition": NaN}', "NaN is not JSON")
    line_case("endless nesting", file, "[" * 100_000, "valid JSON", "recursion")
line_case(
    "an empty object",
    WORKLOADS,
    "{}",
    "a trace of the native schema; found trace: 'definition' is a required property",
    errors=2,
)
line_case(
    "another definition's line",
    WORKLOADS,
    json.dumps(
        {
            "definition": "other",
            "workload": {"axes": {}, "inputs": {}, "uuid": "1"},
            "solution": None,
            "evaluation": None,
        }
    ),
    f"definition {NAME}; found other",
    "move the line to its own file",
)
line_case("a number for a workload", WORKLOADS, json.dumps({"definition": NAME, "workload": 5}), "native schema")
line_case(
    "a list for inputs",
    WORKLOADS,
    json.dumps({"definition": NAME, "workload": {"axes": {}, "inputs": [], "uuid": "1"}}),
    "native schema",
)
line_case("an empty object", CAPTURES, "{}", "is a required property", errors=13)


@CASES.add("evaluated trace among workloads", "error", FIRST, "a workload without solution and evaluation")
def evaluated(tree: Tree) -> None:
    tree.edit_rows(
        WORKLOADS,
        lambda rows: rows[0].update(
            solution="mine",
            evaluation={
                "status": "COMPILE_ERROR",
                "log": "",
                "environment": {"hardware": "cpu", "libs": {}},
                "timestamp": "now",
            },
        ),
    )


@CASES.add("workload file that is no text", "error", WORKLOADS, "UTF-8 text", errors=7)
def no_text(tree: Tree) -> None:
    (tree.root / WORKLOADS).write_bytes(b"\xff\xfe\x00")


@CASES.add(
    "workloads of an unknown definition",
    "error",
    "workloads/toy/other.jsonl",
    "the workload file of a known definition",
)
def unknown_file(tree: Tree) -> None:
    shutil.copyfile(tree.root / WORKLOADS, tree.root / "workloads" / "toy" / "other.jsonl")


@CASES.add("leftover among workloads", "warning", "workloads/toy/.tmp-x", "a leftover of a killed import")
def leftover(tree: Tree) -> None:
    (tree.root / "workloads" / "toy" / ".tmp-x").write_text("{")
