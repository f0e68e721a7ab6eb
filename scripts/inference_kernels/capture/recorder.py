"""Record operator calls of a running engine: complete tensors first, then the call that names them.

Runs inside the engine's worker process, so it imports only torch, safetensors and this library's lowest layer.
The launcher tells through files (`capture/run.py`) which run and which request the calls belong to.
"""

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_kernels.capture.run import REQUEST, read_manifest
from inference_kernels.core.definitions import const_axes, infer_axes, load_definition, resolve_shape, tensor_inputs
from inference_kernels.core.errors import CaptureError, SchemaError
from inference_kernels.core.files import read_json, write_json
from inference_kernels.core.layout import REPOSITORY
from inference_kernels.core.records import statistics, tensor_reference, workload_uuid
from inference_kernels.core.tensors import save_tensor

if TYPE_CHECKING:
    import torch

# How the launcher tells the workers the run folder, and the checkpoint whose recipes the weights are compared with.
RUN_VARIABLE, CHECKPOINT_VARIABLE = "INFERENCE_KERNELS_RUN", "INFERENCE_KERNELS_CHECKPOINT"


class Recorder:
    """Writes the calls of one run folder. Tensors are copied before `record` returns."""

    def __init__(self, run: Path, repository: Path = REPOSITORY):
        self.run, self.repository = run, repository
        self.settings = read_manifest(run)["settings"]
        self.definitions: dict[str, dict] = {}
        self.counts: dict[str, dict[str, int]] = {}

    @classmethod
    def from_environment(cls) -> "Recorder":
        """Return the recorder of the run that the launcher named in the environment."""
        run = os.environ.get(RUN_VARIABLE)
        if not run:
            raise CaptureError(
                expected=f"a capture run in {RUN_VARIABLE}",
                found="nothing",
                where="environment",
                remedy="start the engine through the capture script",
            )
        return cls(Path(run))

    def request(self) -> dict[str, Any] | None:
        """Return the request being served; None outside a case, such as during the engine's warm-up."""
        path = self.run / REQUEST
        return read_json(path) if path.exists() else None

    def observe(self, definition: str) -> None:
        """Count one call of an operator, whether it is captured or not."""
        request = self.request()
        if request is None:
            return
        counts = self.counts.setdefault(request["case"], {})
        counts[definition] = counts.get(definition, 0) + 1
        write_json(self.run / "counts" / f"{request['case']}.json", counts)

    def report_error(self, where: str, error: BaseException) -> None:
        """Leave an exception of a hook for the launcher; raised in the worker it would only kill the engine."""
        folder = self.run / "errors"
        folder.mkdir(exist_ok=True)
        write_json(
            folder / f"{len(list(folder.iterdir())):04d}.json",
            {
                "where": where,
                "message": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error)),
            },
        )

    def record(
        self,
        definition: str,
        inputs: dict[str, Any],
        outputs: dict[str, "torch.Tensor"],
        *,
        operation: dict[str, Any],
        adaptations: list[str],
        auxiliary: dict[str, "torch.Tensor"] | None = None,
        generated: dict[str, dict[str, Any]] | None = None,
    ) -> str:
        """Store one call and return its workload UUID; a call with the same inputs is stored once.

        inputs: tensors, and Python numbers for scalar inputs, under the definition's names, values as they were
            before the call. outputs: complete outputs, values as they were after the call.
        operation: call_path, layer, step, phase, ranks_gathered. adaptations: what was changed, in words.
        generated: input name -> recipe of an input that is a seeded weight.
        CaptureError if names, shapes or dtypes are not the definition's.
        """
        contract = self._definition(definition)
        axes = self._check(contract, inputs, outputs)
        notes = list(adaptations) + _stride_notes(inputs | outputs)
        for name in generated or {}:
            if not hasattr(inputs.get(name), "shape"):
                raise CaptureError(
                    expected="recipes of tensor inputs",
                    found=name,
                    where=definition,
                    remedy="correct the hook's mapping",
                )
        stored = {name: self._input(definition, value) for name, value in inputs.items()}
        uuid = workload_uuid(definition, stored)
        path = self.run / "calls" / f"{uuid}.json"
        if path.exists():
            return uuid
        record = {
            "workload": uuid,
            "definition": definition,
            "class": self.settings["class"],
            "model": self.settings["model"],
            "engine": self.settings["engine"],
            "hardware": self.settings["hardware"],
            "request": self.request(),
            "operation": operation,
            "adaptations": notes,
            "outputs": self._save(definition, outputs),
            "auxiliary": self._save(definition, auxiliary or {}),
            "statistics": {
                name: statistics(value) for name, value in (inputs | outputs).items() if hasattr(value, "shape")
            },
        }
        if generated:
            record["generated"] = generated
        write_json(path, {"workload": {"axes": axes, "inputs": stored, "uuid": uuid}, "record": record})
        return uuid

    def _definition(self, name: str) -> dict:
        if name not in self.definitions:
            self.definitions[name] = load_definition(self.repository, name)
        return self.definitions[name]

    def _check(self, contract: dict, inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, int]:
        for kind, values in (("inputs", inputs), ("outputs", outputs)):
            if list(values) != list(contract[kind]):
                raise CaptureError(
                    expected=f"{kind} {list(contract[kind])}",
                    found=f"{list(values)}",
                    where=contract["name"],
                    remedy="correct the hook's mapping",
                )
        shapes = {name: tuple(getattr(inputs[name], "shape", ())) for name, _ in tensor_inputs(contract)}
        try:
            axes = infer_axes(contract, shapes, contract["name"])
        except SchemaError as error:
            raise CaptureError(
                expected=error.expected, found=error.found, where=error.where, remedy="correct the hook's mapping"
            ) from error
        every = axes | const_axes(contract)
        for name, spec in (contract["inputs"] | contract["outputs"]).items():
            value = (inputs | outputs)[name]
            found = (
                (tuple(value.shape), str(value.dtype).removeprefix("torch."))
                if hasattr(value, "shape")
                else (None, spec["dtype"])
            )
            if found != (resolve_shape(spec, every), spec["dtype"]):
                raise CaptureError(
                    expected=f"{name} {resolve_shape(spec, every)} {spec['dtype']}",
                    found=f"{found[0]} {found[1]}",
                    where=contract["name"],
                    remedy="correct the hook's mapping",
                )
        return axes

    def _input(self, definition: str, value: Any) -> dict[str, Any]:
        if not hasattr(value, "shape"):
            return {"type": "scalar", "value": value}
        return {"type": "safetensors"} | tensor_reference(self._path(definition, value))

    def _save(self, definition: str, tensors: dict[str, "torch.Tensor"]) -> dict[str, dict[str, str]]:
        return {name: tensor_reference(self._path(definition, tensor)) for name, tensor in tensors.items()}

    def _path(self, definition: str, tensor: "torch.Tensor") -> str:
        digest, _ = save_tensor(self.run / "blob" / definition, tensor)
        return f"blob/{definition}/{digest}.safetensors"


def _stride_notes(tensors: dict[str, Any]) -> list[str]:
    return [
        f"{name}: strides {list(value.stride())} made contiguous, values unchanged"
        for name, value in tensors.items()
        if hasattr(value, "shape") and not value.is_contiguous()
    ]
