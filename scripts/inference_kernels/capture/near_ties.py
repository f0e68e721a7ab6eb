"""Exclude whole calls whose selection differs from the reference by near ties only, and keep a record of each.

An engine computes scores in FP32 with another order of summation. Where two candidates around the last selected
place are closer than that noise, the selection is decided by rounding. Such a call is excluded whole, never row by
row, and only after its difference is shown to be of this kind.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.run import MANIFEST, RunFolder
from inference_kernels.core.compare import compare
from inference_kernels.core.definitions import load_definition
from inference_kernels.core.files import read_json, write_json
from inference_kernels.core.records import record_tensors
from inference_kernels.core.replay import Replayed, load_inputs, reference_outputs
from inference_kernels.core.tasks import read_task
from inference_kernels.core.tensors import load_tensor

if TYPE_CHECKING:
    import torch

# Definition -> the output that holds the selection, and the gap below which rounding decides between candidates.
# The engine's FP32 router logits differ from a float64 product by up to 2.2e-5 in the captures.
SELECTIONS = {
    "expert_router_bf16_h5120_e384_top6": ("topk_ids", 1e-4),
    "sparse_index_select_bf16_h4_d128_topk512_blk4": ("block_ids", 1e-5),
}


def exclude_near_tie(run: RunFolder, repository: Path, result: Replayed, device: str) -> bool:
    """Exclude the failed call if near ties explain it; return whether it was excluded."""
    path = run.root / "calls" / f"{result.workload}.json"
    call = read_json(path)
    definition = load_definition(repository, result.definition)
    workload, record = call["workload"], call["record"]
    inputs = load_inputs(definition, workload, lambda text: run.root / text, device)
    name, noise = SELECTIONS[result.definition]
    expected = reference_outputs(definition, workload, inputs)
    found = {output: load_tensor(run.root / item["path"], device) for output, item in record["outputs"].items()}
    gaps = gaps_of_differences(result.definition, inputs, found[name], expected[name])
    same = (found[name] == expected[name]).all(1)
    tolerance = read_task(repository, result.definition).tolerance
    others_hold = all(
        compare(found[output][same], expected[output][same], tolerance).passed for output in found if output != name
    )
    if not gaps or max(gaps) > noise or not others_hold:
        return False
    write_json(
        run.root / "excluded" / path.name,
        {
            "definition": result.definition,
            "reason": "selection differs by near-ties only",
            "rows": len(gaps),
            "largest_gap": max(gaps),
            "request": record["request"],
            "operation": record["operation"],
        },
    )
    remove_call(run, path)
    return True


def gaps_of_differences(
    definition: str, inputs: dict[str, Any], found: "torch.Tensor", expected: "torch.Tensor"
) -> list[float]:
    """Return per differing row the gap between wrongly chosen and missed candidates.

    inf if the rows differ in more than a choice.
    """
    score = router_scores if definition.startswith("expert_router") else index_scores
    gaps = []
    for row in (found != expected).any(1).nonzero().flatten().tolist():
        ours, theirs = set(expected[row].tolist()) - {-1}, set(found[row].tolist()) - {-1}
        if len(ours) != len(theirs) or ours == theirs:
            gaps.append(math.inf)
            continue
        values = score(inputs, row)
        differing = [float(values[candidate]) for candidate in ours ^ theirs]
        gaps.append(max(differing) - min(differing))
    return gaps


def router_scores(inputs: dict[str, Any], row: int) -> "torch.Tensor":
    """Return float64 [experts]: the ranking values of one token."""
    import torch

    logits = inputs["weight"].double() @ inputs["hidden_states"][row].double()
    bias = inputs["bias_vl"] if inputs["is_image"][row] else inputs["bias"]
    return torch.nn.functional.softplus(logits).sqrt() + bias.double()


def index_scores(inputs: dict[str, Any], row: int) -> "torch.Tensor":
    """Return float64 [blocks]: the scores of one query against the complete blocks of its sequence."""
    keys = inputs["k_index_cache"]
    sequence, position = int(inputs["query_seq"][row]), int(inputs["query_pos"][row])
    blocks, size = (position + 1) // 4, keys.shape[1]
    pages = inputs["page_table"][sequence, : -(-blocks // size)].long()
    reached = keys[pages].flatten(0, 1)[:blocks].double()
    return (reached @ inputs["q_index"][row].double().T).relu().sum(1) / math.sqrt(keys.shape[-1])


def remove_call(run: RunFolder, path: Path) -> None:
    """Delete a call, its validation and the tensors that no other call names, and update the manifest."""
    gone = tensor_paths(read_json(path))
    for other in run.calls():
        if other != path:
            gone -= tensor_paths(read_json(other))
    gone |= {f"calls/{path.name}", f"validation/{path.name}"}
    for name in gone:
        (run.root / name).unlink(missing_ok=True)
        run.manifest["files"].pop(name, None)
    write_json(run.root / MANIFEST, run.manifest)


def tensor_paths(call: dict[str, Any]) -> set[str]:
    inputs = {item["path"] for item in call["workload"]["inputs"].values() if "path" in item}
    return inputs | set(record_tensors(call["record"]).values())
