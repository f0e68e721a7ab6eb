"""SGLang plugin: installs the capture hooks in the engine's worker process.

The launcher puts this folder on PYTHONPATH; SGLang finds the entry points in the `.dist-info` folder beside
this file and calls them in the launcher and in every spawned worker.
"""

import multiprocessing

from inference_kernels.capture.recorder import Recorder
from inference_kernels.models.registry import hooks_module


def register() -> None:
    """Register the hooks of the run's kind; leave a failure in the run folder, where the launcher looks."""
    if multiprocessing.parent_process() is None:
        return
    recorder = Recorder.from_environment()
    try:
        hooks_module(recorder.settings["kind"]).register(recorder)
    except Exception as error:
        recorder.report_error("plugin", error)


def register_scheduler() -> None:
    """Do the same for language models, whose detokenizer is a worker too but runs no model."""
    from setproctitle import getproctitle

    if "detokenizer" not in getproctitle():
        register()
