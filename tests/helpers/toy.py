"""A miniature dataset, made as the real one is: by a toy engine, the recorder, validation and the importer."""

import json
import shutil
from collections import Counter
from pathlib import Path

import torch

from helpers.seeded_bytes import recipe_bytes
from inference_kernels.capture import importer
from inference_kernels.capture.recorder import Recorder
from inference_kernels.capture.run import RunFolder
from inference_kernels.capture.validate import require_passed, validate_run
from inference_kernels.seeded.materialize import recipe_file
from inference_kernels.seeded.recipes import Recipe

DATA = Path(__file__).parents[1] / "data" / "toy"
NAME = "toy_gather_scale"
RECIPE = Recipe(seed=7, tensor="toy.weight", shape=(8, 8), dtype="bfloat16", multiplier=40, shift=21)
SETTINGS = {
    "kind": "toy",
    "class": "seeded",
    "definitions": [NAME],
    "model": {"id": "toy", "revision": "seeded", "config_sha256": "0" * 64, "seed": 7, "recipe": "toy-v1"},
    "engine": {"name": "toy", "version": "1", "flags": {}, "environment": {}, "substitutions": []},
    "hardware": {"device": "cpu"},
}
OPERATION = {"call_path": "ToyLayer.forward", "layer": "layers.0", "step": 0, "phase": "prefill", "ranks_gathered": 1}


def toy_root(path: Path) -> Path:
    """Make a dataset root with the toy definition and task, without workloads."""
    shutil.copytree(DATA, path)
    return path


def add_definition(root: Path, name: str) -> None:
    """Add the toy definition and its task again, under another name."""
    for folder in ("definitions/toy", "tasks"):
        value = json.loads((root / folder / f"{NAME}.json").read_text())
        value |= {
            key: text.replace(NAME, name) for key, text in value.items() if key in ("name", "definition", "workloads")
        }
        (root / folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")
    shutil.copyfile(root / "definitions" / "toy" / f"{NAME}.py", root / "definitions" / "toy" / f"{name}.py")


def toy_weight() -> torch.Tensor:
    return torch.frombuffer(bytearray(recipe_bytes(RECIPE)), dtype=torch.bfloat16).reshape(RECIPE.shape)


def toy_call(rows: int) -> tuple[dict, dict]:
    """Return inputs and outputs of one call of the toy engine, which shares no code with the reference."""
    x = ((torch.arange(rows * 8).reshape(rows, 8) % 23 - 11) / 4).to(torch.bfloat16)
    ids = torch.tensor([row * row % rows for row in range(rows)], dtype=torch.int32)
    weight, scale = toy_weight(), 0.5
    y = torch.einsum("nk,kj->nj", x.double().index_select(0, ids), weight.double()) * scale
    chosen = Counter(ids.tolist())
    count = torch.tensor([chosen[row] for row in range(rows)], dtype=torch.int32)
    return {"x": x, "weight": weight, "ids": ids, "scale": scale}, {"y": y.to(torch.bfloat16), "count": count}


def start_run(folder: Path) -> RunFolder:
    return RunFolder.open(folder, SETTINGS)


def record_call(run: RunFolder, root: Path, rows: int, name: str = NAME) -> str:
    """Record one call of the toy engine; return its workload UUID."""
    recorder = Recorder(run.root, root)
    recorder.observe(name)
    inputs, outputs = toy_call(rows)
    return recorder.record(
        name, inputs, outputs, operation=OPERATION, adaptations=[], generated={"weight": RECIPE.to_json()}
    )


def play_case(run: RunFolder, root: Path, case: str, rows: int, name: str = NAME) -> None:
    """Serve one request of the toy engine: one call, recorded."""
    run.begin_case(case, {"rows": rows})
    record_call(run, root, rows, name)
    run.finish_case(case, [], 0.1)


def captured_run(
    folder: Path, root: Path, rows: tuple[int, ...] = (3, 5), names: tuple[str, ...] = (NAME,)
) -> RunFolder:
    """Make a complete, validated run with one case per definition and row count."""
    run = start_run(folder)
    for name in names:
        for count in rows:
            play_case(run, root, f"{name}{count}", count, name)
    require_passed(list(validate_run(run, root, "cpu")), str(folder))
    run.complete()
    return run


def import_run(folder: Path, root: Path, store: str = "starter") -> int:
    """Import as `capture_inputs.py --import-capture` does; return the number of new workloads."""
    calls = importer.read_run(folder, root)
    importer.prepare_root(root)
    places = importer.plan_copies(calls, root, store)
    importer.check_starter_limits(places, folder, root)
    list(importer.copy_tensors(folder, root, places))
    return importer.merge_records(root, calls, places)


def toy_dataset(path: Path, store: str = "starter") -> Path:
    """Make a complete dataset root with two workloads; its seeded weight is materialised."""
    root = toy_root(path / "dataset")
    captured_run(path / "run", root)
    import_run(path / "run", root, store)
    return root


def tree_bytes(root: Path) -> dict[str, bytes]:
    """Read every file below `root`, by relative path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def weight_file() -> bytes:
    return b"".join(recipe_file(RECIPE))
