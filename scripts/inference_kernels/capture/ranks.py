"""Join the shards of a tensor-parallel engine: every rank calls the same hook in the same order."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Ranks:
    """The ranks that hold parts of one operator. group: of torch.distributed, for CPU tensors; None for one rank."""

    size: int = 1
    rank: int = 0
    group: Any = None

    def cat(self, tensor: "torch.Tensor", dim: int) -> "torch.Tensor":
        """Concatenate the shards of all ranks along `dim` in rank order; sizes along `dim` may differ.

        With one rank it is the tensor itself. Every rank gets the result; only rank 0 writes it.
        """
        import torch

        if self.size == 1:
            return tensor
        local = tensor.detach().cpu().movedim(dim, 0).contiguous()
        sizes: list[int] = [0] * self.size
        torch.distributed.all_gather_object(sizes, local.shape[0], group=self.group)
        padded = local.new_zeros((max(sizes), *local.shape[1:]))
        padded[: local.shape[0]] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        # Bytes, because the group's backend does not know every dtype.
        torch.distributed.all_gather([_as_bytes(part) for part in parts], _as_bytes(padded), group=self.group)
        whole = torch.cat([part[:size] for part, size in zip(parts, sizes)])
        return whole.movedim(0, dim).contiguous().to(tensor.device)


def _as_bytes(tensor: "torch.Tensor") -> "torch.Tensor":
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def engine_ranks() -> Ranks:
    """Return the tensor-parallel ranks of this SGLang worker; call it once the engine is initialised."""
    from sglang.srt.distributed import get_tp_group

    group = get_tp_group()
    return Ranks(group.world_size, group.rank_in_group, group.cpu_group) if group.world_size > 1 else Ranks()
