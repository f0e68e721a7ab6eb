"""What the tests of the Qwen families share: paged layouts, constants, constraints, the largest temporary."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inference_kernels.core.constraints import check_constraint
from inference_kernels.core.definitions import const_axes, infer_axes, tensor_inputs
from inference_kernels.core.errors import ConstraintError


def noise(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal float32 values, the same for the same seed and shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shuffled(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def page_table(lengths: list[int], page_size: int, seed: int, spare: int = 2) -> tuple[torch.Tensor, int]:
    """Pages for sequences of these many entries, in shuffled order: (int32 [seqs, max_pages], num_pages).

    Columns past a sequence's last page are -1, and there is one column more than any sequence needs; `spare`
    pages belong to no sequence.
    """
    pages = [-(-length // page_size) for length in lengths]
    order = shuffled(sum(pages) + spare, seed).int()
    table = torch.full((len(lengths), max(pages) + 1), -1, dtype=torch.int32)
    first = 0
    for row, count in zip(table, pages):
        row[:count] = order[first : first + count]
        first += count
    return table, sum(pages) + spare


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@contextmanager
def constants(run, **values):
    """Run with other module constants in the reference that `run` belongs to."""
    before = {name: run.__globals__[name] for name in values}
    run.__globals__.update(values)
    try:
        yield
    finally:
        run.__globals__.update(before)


def broken_rules(definition: dict, inputs) -> list[str]:
    """The definition's constraints that `inputs` break, in definition order."""
    values = dict(zip(definition["inputs"], inputs))
    shapes = {name: tuple(values[name].shape) for name, _ in tensor_inputs(definition)}
    names = values | const_axes(definition) | infer_axes(definition, shapes, "test")
    broken = []
    for rule in definition["constraints"]:
        try:
            check_constraint(rule, names, "test")
        except ConstraintError:
            broken.append(rule)
    return broken


def caught(check, *arguments) -> bool:
    """Whether `check` fails; a reference that crashes is caught too."""
    try:
        check(*arguments)
    except (AssertionError, RuntimeError, IndexError, ValueError):
        return True
    return False


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest storage made under this mode; `inputs` and views of them do not count."""

    def __init__(self, inputs):
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in inputs if isinstance(t, torch.Tensor)}
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return result


def largest_temporary(run, inputs) -> int:
    with LargestTensor(inputs) as measured:
        run(*inputs)
    return measured.bytes
