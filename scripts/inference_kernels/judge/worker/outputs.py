"""What a call may return: plain dense tensors of the declared form, in memory of their own."""

from typing import TYPE_CHECKING, Any

from inference_kernels.judge.verdicts import Rejected

if TYPE_CHECKING:
    import torch


def output_list(result: Any, count: int) -> list[Any]:
    """List the outputs of a value-returning call: one value, or a tuple or list of them; Rejected for another count."""
    values = list(result) if type(result) in (tuple, list) else [result]
    if len(values) != count:
        raise Rejected("bad_output", f"{len(values)} outputs instead of {count}")
    return values


def check_output(name: str, value: Any, spec: dict[str, Any], device: str) -> None:
    """Reject (bad_output) all but a dense tensor of the declared form; `spec`: shape (list of sizes), dtype."""
    import torch

    if type(value) is not torch.Tensor:
        raise Rejected("bad_output", f"{name}: type {type(value).__name__} instead of torch.Tensor itself")
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        raise Rejected("bad_output", f"{name}: a sparse, quantised or lazily transformed tensor")
    if value.device.type != device:
        raise Rejected("bad_output", f"{name}: on {value.device} instead of {device}")
    dtype = str(value.dtype).removeprefix("torch.")
    if (list(value.shape), dtype) != (spec["shape"], spec["dtype"]):
        raise Rejected("bad_output", f"{name}: {list(value.shape)} {dtype} instead of {spec['shape']} {spec['dtype']}")
    if not value.is_contiguous():
        raise Rejected("bad_output", f"{name}: strides {list(value.stride())}: not contiguous")


def check_memory(outputs: dict[str, "torch.Tensor"], inputs: dict[str, Any]) -> None:
    """Reject (bad_output) outputs that share memory with inputs or with each other."""
    import torch

    spans = {name: _span(value) for name, value in outputs.items()}
    taken = {name: _span(value) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    for name, (start, end) in spans.items():
        for other, (low, high) in (taken | {key: span for key, span in spans.items() if key < name}).items():
            if start < high and low < end:
                raise Rejected("bad_output", f"{name} shares memory with {other}")


def _span(tensor: "torch.Tensor") -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()
