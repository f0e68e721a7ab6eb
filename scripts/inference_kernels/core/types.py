"""The JSON documents of the dataset as types: what a checker may rely on once a document has passed its schema.

Values are ordinary dictionaries at run time; nothing here validates. A document is cast to its type where it is
read, and only there. Standard library only.
"""

from typing import Any, Literal, NotRequired, TypedDict

DataClass = Literal["published", "contest", "seeded"]


class ConstAxis(TypedDict):
    """An axis whose size is part of the definition."""

    type: Literal["const"]
    value: int
    description: NotRequired[str]


class VarAxis(TypedDict):
    """An axis whose size each workload gives."""

    type: Literal["var"]
    description: NotRequired[str]


class TensorSpec(TypedDict):
    """A tensor input or an output: names of its axes and its Trace dtype."""

    shape: list[str]
    dtype: str
    description: NotRequired[str]


class ScalarSpec(TypedDict):
    """An input that is a number."""

    shape: None
    dtype: str
    description: NotRequired[str]


class Definition(TypedDict):
    """definitions/<op_type>/<name>.json, the native schema; `reference` is the source of `run`."""

    name: str
    op_type: str
    description: NotRequired[str]
    tags: NotRequired[list[str]]
    axes: dict[str, ConstAxis | VarAxis]
    constraints: NotRequired[list[str] | None]
    inputs: dict[str, TensorSpec | ScalarSpec]
    outputs: dict[str, TensorSpec]
    reference: str


class TensorInput(TypedDict):
    """An input that lies in a one-tensor safetensors file."""

    type: Literal["safetensors"]
    path: str
    tensor_key: str


class ScalarInput(TypedDict):
    """An input that is a number of the workload line itself."""

    type: Literal["scalar"]
    value: int | float | bool


WorkloadInput = TensorInput | ScalarInput


class Workload(TypedDict):
    """The inner object of a line of workloads/<op_type>/<name>.jsonl; `axes` holds the variable axes."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, WorkloadInput]


class WorkloadLine(TypedDict):
    """A native Trace that is a workload: neither a solution nor an evaluation."""

    definition: str
    workload: Workload
    solution: None
    evaluation: None


class TensorReference(TypedDict):
    """A saved tensor of a capture record."""

    path: str
    tensor_key: str


class CapturedModel(TypedDict):
    """The checkpoint of a capture; seeded ones give seed and recipe."""

    id: str
    revision: str
    title: NotRequired[str]
    config_sha256: NotRequired[str]
    seed: NotRequired[int]
    recipe: NotRequired[str]


class CapturedEngine(TypedDict):
    """The engine of a capture, its settings, and what of it was replaced."""

    name: str
    version: str
    torch: NotRequired[str]
    commit: NotRequired[str]
    image: NotRequired[str]
    flags: dict[str, Any]
    environment: dict[str, str]
    substitutions: list[str]


class Operation(TypedDict):
    """Where in the engine's run the operator was called."""

    call_path: str
    layer: str | int | None
    step: int | None
    phase: str
    ranks_gathered: int
    output: NotRequired[int]
    batch: NotRequired[int]


class Statistics(TypedDict):
    """Range of a tensor's finite elements (None if it has none), share of zeros, count of non-finite elements."""

    min: float | None
    max: float | None
    zero_share: float
    non_finite: int


class ReplayRecord(TypedDict):
    """How the reference compared with the engine's outputs; `errors` holds the figures of each output."""

    criterion: dict[str, Any]
    device: str
    torch: NotRequired[str]
    errors: dict[str, dict[str, Any]]
    passed: bool


# One line of captures.jsonl (schemas/capture_record.schema.json). `generated` holds the recipes of inputs that
# materialize_seeded.py rewrites. A call, because `class` is a keyword.
CaptureRecord = TypedDict(
    "CaptureRecord",
    {
        "workload": str,
        "definition": str,
        "class": DataClass,
        "model": CapturedModel,
        "engine": CapturedEngine,
        "hardware": dict[str, Any],
        "request": dict[str, Any],
        "operation": Operation,
        "adaptations": list[str],
        "outputs": dict[str, TensorReference],
        "auxiliary": dict[str, TensorReference],
        "generated": NotRequired[dict[str, dict[str, Any]]],
        "statistics": dict[str, Statistics],
        "replay": ReplayRecord,
    },
)


class ToleranceDocument(TypedDict):
    """The acceptance rule of a task; a ratio of None means that every element must match."""

    atol: float
    rtol: float
    required_matched_ratio: float | None
    comparison: Literal["absolute_plus_relative", "absolute_or_relative"]


class TaskTiming(TypedDict):
    """How a task is timed: calls per trial, and whether `prepare` counts (call) or not (launch)."""

    warmup: int
    iters: int
    trials: int
    timed: Literal["launch", "call"]


class Rearrangement(TypedDict):
    """A change of the inputs whose effect on the outputs is known (judge/rearrange.py says what each key means)."""

    name: str
    axes: str
    when: NotRequired[str]
    within: NotRequired[list[str]]
    relabel: NotRequired[str]
    recompute: NotRequired[bool]
    after_prepare: NotRequired[bool]


class FreshRuleDocument(TypedDict):
    """How one input gets values that no earlier call had (judge/fresh.py says what each key means)."""

    tensor: str
    how: Literal["mix", "gate", "jitter", "fp8_rows", "fp8_pages", "fp4_pages"]
    axis: NotRequired[int]
    strength: NotRequired[float]
    scale: NotRequired[str]
    group: NotRequired[int]
    cut: NotRequired[Literal["router", "index"]]
    after_prepare: NotRequired[bool]
    reason: str


class TaskDocument(TypedDict):
    """tasks/<name>.json (schemas/task.schema.json)."""

    definition: str
    workloads: str
    baseline: str
    tolerance: ToleranceDocument
    dev: list[str]
    group_axis: str
    timing: TaskTiming
    rearrangements: NotRequired[list[Rearrangement]]
    fresh: NotRequired[list[FreshRuleDocument]]


class BuildSpec(TypedDict):
    """How a solution is built and called."""

    language: str
    target_hardware: list[str]
    entry_point: str
    dependencies: NotRequired[list[str]]
    destination_passing_style: NotRequired[bool]
    binding: NotRequired[str | None]


class SourceFile(TypedDict):
    """A source file of a solution: its path below the solution's folder, and its text."""

    path: str
    content: str


class Solution(TypedDict):
    """solutions/<op_type>/<name>.json, the native schema; `sources` is packed from the folder beside it."""

    name: str
    definition: str
    author: str
    description: NotRequired[str]
    spec: BuildSpec
    sources: list[SourceFile]
