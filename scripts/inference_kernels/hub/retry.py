"""Retry a busy Hub, honouring Retry-After, and end even a hung upload by a time limit.

A batch is sent by a process of its own, because a thread that hangs inside an upload library cannot be
stopped (https://github.com/huggingface/huggingface_hub/issues/3765).
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from inference_kernels.core.errors import DatasetError, EnvironmentMissing
from inference_kernels.hub.client import HubBusy, HubError, HubUnreachable

Result = TypeVar("Result")
Tell = Callable[[str], None]
ERRORS = {kind.__name__: kind for kind in (HubError, EnvironmentMissing)}
BUSY_ERRORS = {kind.__name__: kind for kind in (HubBusy, HubUnreachable)}


@dataclass(frozen=True)
class Patience:
    """How often to try, and how long to wait.

    attempts: tries in all. Waits double from first_wait_s to longest_wait_s unless the server names its own;
    a server that asks for more than give_up_s is not waited for; without a connection all tries end after
    unreachable_s. batch_s: time limit of an empty batch;
    slowest_bytes_s: a batch below this rate counts as hung. stopped: set to end every wait and step that
    shares this patience. sleep: replaces waiting on `stopped`.
    """

    attempts: int = 8
    first_wait_s: float = 2.0
    longest_wait_s: float = 300.0
    give_up_s: float = 3600.0
    unreachable_s: float = 20.0
    batch_s: float = 600.0
    slowest_bytes_s: float = 1e6
    sleep: Callable[[float], Any] | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def limit_s(self, size: int) -> float:
        """Return the seconds that `size` bytes may take."""
        return self.batch_s + size / self.slowest_bytes_s

    def wait_s(self, failures: int, asked_s: float | None) -> float:
        """Return the seconds to wait after so many failures; asked_s: the server's own wish, or None."""
        usual = min(self.first_wait_s * 2 ** (failures - 1), self.longest_wait_s)
        return usual if asked_s is None else max(asked_s, self.first_wait_s)


def with_retries(step: Callable[[], Result], patience: Patience, tell: Tell) -> Result:
    """Run `step` until it succeeds: wait after HubBusy, and raise the last one; raise other errors at once."""
    lost_s = 0.0
    for failures in range(1, patience.attempts + 1):
        if patience.stopped.is_set():
            break
        start = time.monotonic()
        try:
            return step()
        except HubBusy as error:
            wait = patience.wait_s(failures, error.retry_after_s)
            # One more try may take as long as this one to find nobody.
            took = time.monotonic() - start
            lost_s = lost_s + took + wait if isinstance(error, HubUnreachable) else 0.0
            if lost_s + took > patience.unreachable_s:
                raise
            if failures == patience.attempts or wait > patience.give_up_s:
                raise
            tell(f"{error.where}: {error.found}; waiting {wait:.0f} s ({failures} of {patience.attempts})")
            (patience.sleep or patience.stopped.wait)(wait)
    raise HubError(
        expected="to go on", found="stopped by another failure", where="pull", remedy="see the first failure"
    )


def run_limited(step: Callable[[], Result], limit_s: float, where: str) -> Result:
    """Run `step` in a process that is killed after `limit_s` seconds; HubBusy then.

    `step` and its result must be picklable.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, step), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            raise HubBusy(
                expected=f"the batch within {limit_s:.0f} s",
                found="no end",
                where=where,
                remedy="run the same command again; finished batches are kept",
            )
        answer = receiver.recv()
    except EOFError as error:
        process.join()
        raise HubError(
            expected="a result of the batch",
            found=f"its process ended with {process.exitcode}",
            where=where,
            remedy="see the messages above",
        ) from error
    finally:
        process.kill()
        process.join()
        receiver.close()
    return _unpack(answer)


def _child(sender: Connection, step: Callable[[], Any]) -> None:
    try:
        answer = {"value": step()}
    except DatasetError as error:
        fields = {name: getattr(error, name) for name in ("expected", "found", "where", "remedy")}
        answer = {
            "error": type(error).__name__,
            "fields": fields,
            "retry_after_s": getattr(error, "retry_after_s", None),
        }
    sender.send(answer)
    sender.close()


def _unpack(answer: dict[str, Any]) -> Any:
    if "value" in answer:
        return answer["value"]
    if answer["error"] in BUSY_ERRORS:
        raise BUSY_ERRORS[answer["error"]](**answer["fields"], retry_after_s=answer["retry_after_s"])
    raise ERRORS.get(answer["error"], DatasetError)(**answer["fields"])
