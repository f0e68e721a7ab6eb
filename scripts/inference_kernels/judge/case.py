"""One workload as the judge holds it: captured inputs, expected outputs, and arrangements of both.

Of all this a worker is sent nothing but the bytes of inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.core.constraints import names_in
from inference_kernels.core.definitions import const_axes, resolve_shape
from inference_kernels.core.errors import DatasetError
from inference_kernels.core.layout import blob_path
from inference_kernels.core.records import read_captures
from inference_kernels.core.replay import load_inputs, reference_outputs
from inference_kernels.core.tasks import Task
from inference_kernels.core.tensors import load_tensor
from inference_kernels.core.types import Definition, Workload
from inference_kernels.core.workloads import Available
from inference_kernels.judge.rearrange import DrawnMove, Move, draw_move, moves_of
from inference_kernels.judge.verdicts import Rejected

if TYPE_CHECKING:
    import torch

# Tensors larger than this are neither rearranged nor copied for each input set: expert banks.
TOUCH_LIMIT = 2**29


@dataclass
class JudgedCase:
    """One workload to judge; `inputs` and `expected` by name on the judge's own device.

    seed: of every choice and permutation. Two solutions judged with the same case see the same values in the same
    order: the time of a kernel may depend on them. recomputable: the reference may be run again.
    """

    definition: Definition
    workload: Workload
    task: Task
    inputs: dict[str, Any]
    expected: dict[str, "torch.Tensor"]
    moves: list[Move]
    seed: int
    data_class: str = "unknown"
    recomputable: bool = True

    @property
    def axes(self) -> dict[str, int]:
        return const_axes(self.definition) | self.workload["axes"]

    @property
    def tensors(self) -> dict[str, "torch.Tensor"]:
        return {name: value for name, value in self.inputs.items() if hasattr(value, "shape")}

    def output_specs(self) -> dict[str, dict[str, Any]]:
        """Say what a worker must know of each output: shape, dtype, bytes."""
        return {
            name: {
                "shape": list(resolve_shape(spec, self.axes)),
                "dtype": spec["dtype"],
                "bytes": nbytes(self.expected[name]),
            }
            for name, spec in self.definition["outputs"].items()
        }

    def output_bytes(self) -> int:
        return sum(map(nbytes, self.expected.values()))

    def usable_moves(self, after_prepare: bool) -> list[Move]:
        """List the moves that touch no oversized tensor and, if asked, activations only."""
        return [
            move
            for move in self.moves
            if (move.after_prepare or not after_prepare)
            and (self.recomputable or not move.recompute)
            and all(
                nbytes(self.inputs[place.tensor]) <= TOUCH_LIMIT for place in move.places if place.tensor in self.inputs
            )
        ]

    def changes_outputs(self, move: Move) -> bool:
        outputs = set(self.definition["outputs"])
        return (
            move.recompute
            or any(place.tensor in outputs for place in move.places)
            or any(name in outputs for name, _ in move.relabel)
        )


class Arrangement:
    """The current values of one input set: the captured ones after all moves made, and the outputs they call for.

    Both are brought up to date only when asked for. keys: inputs that moves read to decide what may change places.
    """

    def __init__(self, case: JudgedCase, generator: "torch.Generator"):
        self.case, self.generator = case, generator
        self.pending: list[DrawnMove] = []
        self._inputs = dict(case.inputs)
        self._expected = case.expected
        self.previous = case.expected
        read = {name for move in case.moves for text in (*move.within, move.when) if text for name in names_in(text)}
        self.keys = {name: case.inputs[name] for name in sorted(read & set(case.inputs))}

    def take_all(self, after_prepare: bool) -> list[DrawnMove]:
        """Make every legal move with a known result, drawn afresh; fall back to moves that recompute."""
        usable = self.case.usable_moves(after_prepare)
        drawn = self._take([move for move in usable if not move.recompute])
        if not any(self.case.changes_outputs(item.move) for item in drawn):
            drawn += self._take([move for move in usable if move.recompute])
        return drawn

    def take_some(self, choose: Callable[[list[Move]], Move]) -> list[DrawnMove]:
        """Make a move that changes the outputs and another, both legal after prepare: enough for a timed call."""
        usable = [move for move in self.case.usable_moves(True) if not move.recompute]
        changing = [move for move in usable if self.case.changes_outputs(move)]
        drawn = self._take([choose(group) for group in (changing, usable) if group])
        return drawn if any(self.case.changes_outputs(item.move) for item in drawn) else drawn + self.scramble()

    def scramble(self) -> list[DrawnMove]:
        """Make the moves that recompute: no rearrangement of a known result is right after them."""
        return self._take([move for move in self.case.usable_moves(True) if move.recompute])

    def _take(self, moves: list[Move]) -> list[DrawnMove]:
        taken = []
        for move in moves:
            drawn = draw_move(move, self.case.inputs | self.keys, self.case.axes, self.generator)
            if drawn:
                touched = {place.tensor for place in move.places} | set(drawn.units)
                self.keys |= {name: self.keys[name].clone() for name in touched & set(self.keys)}
                drawn.apply(self.keys)
                taken.append(drawn)
        self.pending = self.pending + taken
        return taken

    def inputs(self) -> dict[str, Any]:
        self._settle()
        return self._inputs

    def expected(self) -> dict[str, "torch.Tensor"]:
        self._settle()
        return self._expected

    def _settle(self) -> None:
        """Apply the pending moves to copies of what they touch; run the reference again if one asks for it."""
        if not self.pending:
            return
        touched = {place.tensor for item in self.pending for place in item.move.places}
        touched |= {name for item in self.pending for name in item.units}
        self._inputs = self._inputs | {name: self._inputs[name].clone() for name in touched & set(self._inputs)}
        for item in self.pending:
            item.apply({name: self._inputs[name] for name in touched & set(self._inputs)})
        recompute = any(item.move.recompute for item in self.pending)
        self.previous = self._expected
        self._expected = (
            run_reference(self.case.definition, self.case.workload, self._inputs)
            if recompute
            else rearranged(self._expected, self.pending)
        )
        self.pending = []


def rearranged(outputs: dict[str, "torch.Tensor"], drawn: list[DrawnMove]) -> dict[str, "torch.Tensor"]:
    values = {name: value.clone() for name, value in outputs.items()}
    for item in drawn:
        item.apply(values)
    return values


def nbytes(tensor: "torch.Tensor") -> int:
    return tensor.numel() * tensor.element_size()


def run_reference(definition: Definition, workload: Workload, inputs: dict[str, Any]) -> dict[str, "torch.Tensor"]:
    """Run the reference; Rejected (no_reference) if it fails or an output is not finite."""
    try:
        outputs = reference_outputs(definition, workload, inputs)
    except DatasetError as error:
        raise Rejected("no_reference", error.line()) from error
    for name, value in outputs.items():
        if value.dtype.is_floating_point and not bool(value.isfinite().all()):
            raise Rejected(
                "no_reference",
                f"the reference's output {name} is not finite on workload {workload['uuid']}: no solution is to blame",
            )
    return {name: value.clone() for name, value in outputs.items()}


class LargeTensors:
    """A cache of the expert banks of the last workload: the next one of its definition mostly reads the same."""

    def __init__(self) -> None:
        self.last: dict[Path, torch.Tensor] = {}
        self.now: dict[Path, torch.Tensor] = {}

    def load(self, path: Path, device: str) -> "torch.Tensor":
        tensor = self.last.get(path)
        if tensor is None:
            tensor = load_tensor(path, device)
        if nbytes(tensor) > TOUCH_LIMIT:
            self.now[path] = tensor
        return tensor

    def keep_latest(self) -> None:
        """Keep what was loaded since the last call of this, and nothing older."""
        self.last, self.now = self.now, {}


def load_case(
    root: Path,
    definition: Definition,
    item: Available,
    task: Task,
    device: str,
    seed: int,
    against: str,
    banks: LargeTensors,
) -> JudgedCase:
    """Load inputs, expected outputs and moves of a workload; Rejected (not_materialised) if a tensor is not here.

    against: `reference` or `capture` (the engine's saved outputs; then nothing can be recomputed).
    """
    name, workload = definition["name"], item.workload

    def resolve(path: str) -> Path:
        return blob_path(root, path, name, item.uuid)

    if item.missing:
        raise Rejected("not_materialised", item.missing)
    inputs = load_inputs(definition, workload, resolve, device, banks.load)
    banks.keep_latest()
    expected = (
        run_reference(definition, workload, inputs)
        if against == "reference"
        else saved_outputs(root, definition, item, resolve, device)
    )
    return JudgedCase(
        definition,
        workload,
        task,
        inputs,
        expected,
        moves_of(task.rearrangements),
        seed,
        item.data_class,
        against == "reference",
    )


def saved_outputs(
    root: Path, definition: Definition, item: Available, resolve: Callable[[str], Path], device: str
) -> dict[str, "torch.Tensor"]:
    """Load the engine's outputs of a workload; Rejected (not_materialised) if none were saved."""
    records = [record for record in read_captures(root) if record["workload"] == item.uuid and record["outputs"]]
    if not records:
        raise Rejected("not_materialised", "no saved engine outputs for this workload")
    return {name: load_tensor(resolve(records[0]["outputs"][name]["path"]), device) for name in definition["outputs"]}
