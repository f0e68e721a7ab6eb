"""Damaged definitions and tasks: each damage to a sound tree, and the finding it must produce."""

import json
import os
import shutil
from collections.abc import Callable

from helpers.corruption import Table
from helpers.hostile_rules import RULES
from helpers.toy import NAME
from helpers.toy_tree import DEFINITION, TASK, Tree

CASES = Table()
SOURCE = DEFINITION.replace(".json", ".py")


def definition_case(label: str, change: Callable[[dict], None], *fragments: str, errors: int = 1) -> None:
    CASES.add(f"definition: {label}", "error", DEFINITION, *fragments, errors=errors)(
        lambda tree: tree.edit_json(DEFINITION, change)
    )


def with_rule(rule: str) -> Callable[[dict], None]:
    return lambda definition: definition["constraints"].append(rule)


definition_case(
    "unknown key",
    lambda value: value.update(constraint=[]),
    "unknown key 'constraint'",
    "did you mean 'constraints'?",
    errors=2,
)
definition_case(
    "unknown key in an axis",
    lambda value: value["axes"]["N"].update(descripton="rows"),
    "unknown key 'axes.N.descripton'",
    "did you mean 'description'?",
)
definition_case(
    "no description of an input",
    lambda value: value["inputs"]["x"].pop("description"),
    "a description of inputs.x; found none",
)
definition_case(
    "blank description of an axis",
    lambda value: value["axes"]["N"].update(description="  "),
    "a description of axes.N; found none",
)
definition_case(
    "misspelt axis in a shape",
    lambda value: value["inputs"]["x"].update(shape=["M", "K"]),
    "a definition of the native schema",
    "M",
)
definition_case("misspelt axis in a constraint", with_rule("n >= 1"), "names of axes and inputs in 'n >= 1'; found n")
definition_case(
    "unknown dtype",
    lambda value: value["inputs"]["x"].update(dtype="uint8"),
    "a definition of the native schema",
    "inputs.x.dtype",
)
definition_case(
    "size as text", lambda value: value["axes"]["K"].update(value="8"), "axes.K.value: '8' is not of type 'integer'"
)
definition_case(
    "edited reference",
    lambda value: value.update(reference=value["reference"] + "\n"),
    "the packed source equal to the readable one",
    "run: python scripts/pack.py",
)
definition_case(
    "axis of an output only",
    lambda value: (
        value["axes"].update(P={"type": "var", "description": "pages"}),
        value["outputs"]["count"].update(shape=["P"]),
    ),
    "variable axis P in some input's shape; found only elsewhere",
    errors=3,
)
for rule, reason in RULES:
    definition_case(f"hostile rule {rule[:40]}", with_rule(rule), "a constraint in the allowed language", reason)


definition_case(
    "reference of 5,000 sums",
    lambda value: value.update(reference="def run():\n    return 1" + "+1" * 5000 + "\n"),
    "reference: not Python",
    errors=2,
)


for name in (DEFINITION, TASK):

    @CASES.add(f"named pipe as {name}", "error", name, "a regular file; found a pipe or device")
    def pipe(tree: Tree, name: str = name) -> None:
        (tree.root / name).unlink()
        os.mkfifo(tree.root / name)


@CASES.add("definition: half a file", "error", DEFINITION, "valid JSON")
def half_definition(tree: Tree) -> None:
    path = tree.root / DEFINITION
    path.write_text(path.read_text()[:200])


@CASES.add("definition: a list", "error", DEFINITION, "a JSON object; found list")
def list_definition(tree: Tree) -> None:
    (tree.root / DEFINITION).write_text("[]\n")


@CASES.add(
    "definition: another name than its file",
    "error",
    "definitions/toy/renamed.json",
    f"the file toy/{NAME}.json",
    "move the file",
)
def renamed(tree: Tree) -> None:
    for name in (DEFINITION, SOURCE):
        (tree.root / name).rename((tree.root / name).with_stem("renamed"))
    tree.edit_json("definitions/toy/renamed.json", lambda value: value["tags"].append("renamed"))


@CASES.add("definition: readable reference missing", "error", DEFINITION, "the readable reference", "no such file")
def no_source(tree: Tree) -> None:
    (tree.root / SOURCE).unlink()


@CASES.add("definition: JSON at another depth", "error", "definitions/notes.json", "another depth")
def other_depth(tree: Tree) -> None:
    (tree.root / "definitions" / "notes.json").write_text("{}")


@CASES.add("retired definition that is broken", "error", "retired/definitions/toy/old.json", "valid JSON")
def retired(tree: Tree) -> None:
    folder = tree.root / "retired" / "definitions" / "toy"
    folder.mkdir(parents=True)
    (folder / "old.json").write_text("{")
    shutil.copyfile(tree.root / SOURCE, folder / "old.py")


def task_case(label: str, change: Callable[[dict], None], *fragments: str) -> None:
    CASES.add(f"task: {label}", "error", TASK, *fragments)(lambda tree: tree.edit_json(TASK, change))


task_case("unknown key", lambda task: task.update(tolerence={}), "a task of schemas/task.schema.json", "'tolerence'")
task_case("negative tolerance", lambda task: task["tolerance"].update(atol=-1), "$.tolerance.atol")
task_case(
    "ratio above one",
    lambda task: task["tolerance"].update(required_matched_ratio=2),
    "$.tolerance.required_matched_ratio",
)
task_case("unknown rule", lambda task: task["tolerance"].update(comparison="loose"), "'loose' is not one of")
task_case("grouped by a constant axis", lambda task: task.update(group_axis="K"), "a variable axis of ['N']; found K")
task_case(
    "unknown dev workload",
    lambda task: task.update(dev=["00000000-0000-5000-8000-000000000000"]),
    "dev UUIDs of existing workloads",
)
task_case(
    "other workload file",
    lambda task: task.update(workloads="workloads/toy/other.jsonl"),
    "found workloads/toy/other.jsonl",
)
task_case("another definition", lambda task: task.update(definition="other"), f"definition {NAME}; found other")


@CASES.add("task: missing", "error", TASK, "expected a file; found nothing")
def no_task(tree: Tree) -> None:
    (tree.root / TASK).unlink()


@CASES.add("task: infinite tolerance", "error", TASK, "valid JSON", "Infinity is not JSON")
def infinite_tolerance(tree: Tree) -> None:
    path = tree.root / TASK
    path.write_text(path.read_text().replace("0.005", "Infinity"))


@CASES.add("task: tolerance too large for a float", "error", TASK, "valid JSON", "1e999 is beyond")
def huge_tolerance(tree: Tree) -> None:
    path = tree.root / TASK
    path.write_text(path.read_text().replace("0.005", "1e999"))


@CASES.add("task: of no definition", "error", "tasks/other.json", "the task of a known definition; found other")
def orphan_task(tree: Tree) -> None:
    value = json.loads((tree.root / TASK).read_text())
    (tree.root / "tasks" / "other.json").write_text(json.dumps(value))
