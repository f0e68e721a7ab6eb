"""The state and the error handling that the hook classes of all models share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference_kernels.capture.recorder import Recorder


class EngineHooks:
    """Hook functions of one run. selection, definitions: what to capture, from the run's settings."""

    def __init__(self, recorder: "Recorder"):
        self.recorder = recorder
        self.selection, self.definitions = recorder.settings["selection"], recorder.settings["definitions"]
        self.failed = False

    def safely(self, where: str, work: Callable[[], Any]) -> Any:
        """Return `work()`; leave any exception in the run folder, where the launcher finds it, and stop capturing.

        The engine goes on: an exception raised here would end its worker and look like a failure of the engine.
        """
        if self.failed:
            return None
        try:
            return work()
        except Exception as error:
            self.failed = True
            self.recorder.report_error(where, error)
            return None
