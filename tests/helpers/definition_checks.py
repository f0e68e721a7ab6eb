"""A reference with small constants, and the verdict of a definition's constraints on given inputs."""

from contextlib import contextmanager

from inference_kernels.core.constraints import evaluate
from inference_kernels.core.definitions import const_axes, infer_axes


@contextmanager
def constants(run, **values):
    """Compile the reference with some of its constants replaced, so that real sizes need not be allocated."""
    saved = {name: run.__globals__[name] for name in values}
    run.__globals__.update(values)
    try:
        yield run
    finally:
        run.__globals__.update(saved)


def constraints_hold(record: dict, *inputs) -> bool:
    """Tell whether every constraint of the definition is true for `inputs`, given in definition order."""
    named = dict(zip(record["inputs"], inputs, strict=True))
    shapes = {name: tuple(value.shape) for name, value in named.items() if hasattr(value, "shape")}
    names = const_axes(record) | infer_axes(record, shapes, "test") | named
    return all(evaluate(rule, names, "test") for rule in record["constraints"])
