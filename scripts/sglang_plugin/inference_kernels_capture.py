"""SGLang plugin: installs the capture hooks in the engine's worker process.

The launcher puts this folder on PYTHONPATH; SGLang finds the entry point in the `.dist-info` folder beside
this file and calls `register` in the launcher and in every spawned worker.
"""

import importlib
import multiprocessing

from inference_kernels.capture.recorder import Recorder

HOOKS = {
    "image": "inference_kernels.models.image.hooks",
    "ltx25": "inference_kernels.models.ltx.hooks",
    "deepseek41": "inference_kernels.models.deepseek.hooks",
    "qwen-next": "inference_kernels.models.qwen.hooks",
    "qwen3-next-gdn": "inference_kernels.models.gdn.hooks",
}


def register() -> None:
    """Register the hooks of the run's kind; a failure goes to the run folder, where the launcher looks."""
    if multiprocessing.parent_process() is None:
        return
    recorder = Recorder.from_environment()
    try:
        importlib.import_module(HOOKS[recorder.settings["kind"]]).register(recorder)
    except Exception as error:
        recorder.report_error("plugin", error)


def register_scheduler() -> None:
    """The same for language models, whose detokenizer is a worker too but runs no model."""
    from setproctitle import getproctitle

    if "detokenizer" not in getproctitle():
        register()
