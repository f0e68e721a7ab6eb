"""C = A @ B.T in one Triton kernel.

Boundary: the whole definition. Tiles of C in an order that keeps rows of A and B in L2; for many rows a
persistent program per multiprocessor, so that the last tile is stored while the next one loads. On sm_90 and
later A, B and C are reached through tensor memory accelerator descriptors, elsewhere through pointers. Sums
in float32, one rounding.
Validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones.
"""

import sys
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


class Config(NamedTuple):
    """Tile sizes for calls with at most `rows` rows; `group`: consecutive row tiles that share a weight tile."""

    rows: int
    block_m: int
    block_n: int
    block_k: int
    group: int
    persistent: bool
    warps: int
    stages: int


# From sweeps on an H200, but for the row up to 1024, which no sweep covered.
CONFIGS = (
    Config(16, block_m=16, block_n=32, block_k=256, group=1, persistent=False, warps=4, stages=4),
    Config(64, block_m=64, block_n=32, block_k=128, group=1, persistent=False, warps=4, stages=5),
    Config(128, block_m=128, block_n=64, block_k=128, group=1, persistent=False, warps=8, stages=4),
    Config(1024, block_m=128, block_n=128, block_k=64, group=8, persistent=False, warps=8, stages=4),
    Config(sys.maxsize, block_m=128, block_n=256, block_k=64, group=8, persistent=True, warps=8, stages=4),
)


def run(A, B):
    """Multiply A bfloat16 [M, K] by the transpose of B bfloat16 [N, K] -> C bfloat16 [M, N]."""
    return prepare(A, B)()


def prepare(A, B):
    (M, K), N = A.shape, B.shape[0]
    config = next(config for config in CONFIGS if config.rows >= M)
    tiles = triton.cdiv(M, config.block_m) * (N // config.block_n)
    programs = min(tiles, multiprocessors(A.device)) if config.persistent else tiles
    described = has_descriptors(A.device)
    a, b = (
        TensorDescriptor.from_tensor(x, [rows, config.block_k]) if described else x
        for x, rows in ((A, config.block_m), (B, config.block_n))
    )

    def launch():
        C = torch.empty(M, N, dtype=torch.bfloat16, device=A.device)
        c = TensorDescriptor.from_tensor(C, [config.block_m, config.block_n // 2]) if described else C
        _product[(programs,)](
            a,
            b,
            c,
            M,
            N,
            K,
            config.block_m,
            config.block_n,
            config.block_k,
            config.group,
            config.persistent,
            described,
            A.device.type == "cpu",
            num_warps=config.warps,
            num_stages=config.stages,
        )
        return C

    return launch


def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_descriptors(device):
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@triton.jit(do_not_specialize=["M"])  # otherwise M = 1 and multiples of 16 compile separate kernels
def _product(
    a, b, c, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, PERSISTENT: tl.constexpr, DESCRIBED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    if PERSISTENT:
        tiles = tl.cdiv(M, BLOCK_M) * (N // BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _tile(a, b, c, tile, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, DESCRIBED, INTERPRET)
    else:
        _tile(a, b, c, tl.program_id(0), M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, DESCRIBED, INTERPRET)


@triton.jit
def _tile(
    a, b, c, tile, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, DESCRIBED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute one tile of C. Tiles run down GROUP tiles of rows, then on to the next columns."""
    strip = GROUP * (N // BLOCK_N)
    first = tile // strip * GROUP
    height = tl.minimum(tl.cdiv(M, BLOCK_M) - first, GROUP)
    row = (first + tile % strip % height) * BLOCK_M
    column = tile % strip // height * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = _load(a, row, k, M, K, BLOCK_M, BLOCK_K, DESCRIBED)
        weight = _load(b, column, k, N, K, BLOCK_N, BLOCK_K, DESCRIBED)
        if INTERPRET:  # the interpreter multiplies bfloat16 wrongly
            total = tl.dot(x.to(tl.float32), weight.to(tl.float32).T, total)
        else:
            total = tl.dot(x, weight.T, total)
    # In halves, so that the stores need half the shared memory.
    halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
    left, right = tl.split(halves)
    _store(c, left, row, column, M, N, DESCRIBED)
    _store(c, right, row, column + BLOCK_N // 2, M, N, DESCRIBED)


@triton.jit
def _load(x, row, column, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DESCRIBED: tl.constexpr):
    """Load a tile of x [rows, columns]; below the last row it is zero."""
    if DESCRIBED:
        return x.load([row, column])
    else:
        row += tl.arange(0, ROWS)
        place = row.to(tl.int64)[:, None] * columns + column + tl.arange(0, COLUMNS)[None]
        return tl.load(x + place, mask=(row < rows)[:, None], other=0)


@triton.jit
def _store(c, value, row, column, rows, columns, DESCRIBED: tl.constexpr):
    """Round a tile and write it into c [rows, columns], but nothing below the last row."""
    if DESCRIBED:
        c.store([row, column], value.to(tl.bfloat16))
    else:
        row += tl.arange(0, value.shape[0])
        place = row.to(tl.int64)[:, None] * columns + column + tl.arange(0, value.shape[1])[None]
        tl.store(c + place, value.to(tl.bfloat16), mask=(row < rows)[:, None])
