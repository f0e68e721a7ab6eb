"""GPUs by UUID only: the indices of nvidia-smi and of CUDA may differ. Standard library only."""

import re
import subprocess
from dataclasses import dataclass
from typing import Any

from inference_kernels.judge.verdicts import CannotJudge

GPU_LINE = re.compile(r"GPU \d+: (.+) \(UUID: (GPU-[0-9a-fA-F-]+)\)")
MIG_LINE = re.compile(r"\s+MIG (.+?)\s+Device\s+\d+: \(UUID: (MIG-[0-9a-zA-Z/-]+)\)")
STATE_FIELDS = (
    "pstate",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "clocks_event_reasons.active",
)
QUERY_SECONDS = 20


@dataclass(frozen=True)
class Gpu:
    """uuid: what CUDA is told (a MIG instance's own); physical: UUID of the card, which names the lock."""

    uuid: str
    physical: str
    name: str


def nvidia_smi(*arguments: str) -> str:
    """Run nvidia-smi and return its output; CannotJudge if it is absent or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotJudge(
            expected="an NVIDIA GPU and nvidia-smi",
            found=str(error),
            where="nvidia-smi",
            remedy="use a GPU host, or --gpu cpu to try the harness",
        ) from error
    if done.returncode:
        raise CannotJudge(
            expected="an NVIDIA GPU and its driver",
            found=(done.stdout + done.stderr).strip()[:200],
            where="nvidia-smi",
            remedy="use a GPU host, or --gpu cpu to try the harness",
        )
    return done.stdout


def parse_listing(text: str) -> list[Gpu]:
    """Parse the GPUs and MIG instances of `nvidia-smi -L`, sorted by UUID."""
    found: list[Gpu] = []
    card: Gpu | None = None
    for line in text.splitlines():
        if match := GPU_LINE.match(line):
            card = Gpu(match[2], match[2], match[1])
            found.append(card)
        elif (match := MIG_LINE.match(line)) and card:
            found.append(Gpu(match[2], card.physical, f"{card.name} MIG {match[1]}"))
    return sorted(found, key=lambda gpu: gpu.uuid)


def resolve(prefix: str, listing: str) -> Gpu:
    """Find the only GPU or MIG instance whose UUID starts with `prefix`; CannotJudge if there is not exactly one."""
    every = parse_listing(listing)
    matches = [gpu for gpu in every if gpu.uuid.lower().startswith(prefix.lower())]
    if len(matches) == 1 and prefix:
        return matches[0]
    known = ", ".join(f"{gpu.uuid} ({gpu.name})" for gpu in matches or every) or "none"
    raise CannotJudge(
        expected="the unique prefix of one GPU's UUID",
        where="--gpu",
        remedy="choose one of those",
        found=f"{prefix!r}: {'ambiguous among' if matches else 'none of'} {known}",
    )


def gpu_state(gpu: Gpu) -> dict[str, Any]:
    """Read clocks, power and throttle reasons; they are recorded and never changed."""
    text = nvidia_smi(f"--id={gpu.physical}", f"--query-gpu={','.join(STATE_FIELDS)}", "--format=csv,noheader")
    return dict(zip(STATE_FIELDS, (value.strip() for value in text.strip().split(","))))


def driver_version(gpu: Gpu) -> str:
    return nvidia_smi(f"--id={gpu.physical}", "--query-gpu=driver_version", "--format=csv,noheader").strip()


def same_uuid(one: str, other: str) -> bool:
    """Compare two UUIDs; CUDA reports one with or without its prefix."""
    plain = [text.lower().removeprefix("gpu-").removeprefix("mig-") for text in (one, other)]
    return plain[0] == plain[1]
