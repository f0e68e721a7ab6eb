"""What a judgement can say: the statuses, and the two exceptions that carry them."""

from inference_kernels.core.errors import DatasetError

# status -> (kind, meaning). Kind: pass; reject = the solution's fault; void = nothing was judged.
STATUSES = {
    "pass": ("pass", "every output of every checked call is right, and every sample is sound"),
    "build_error": ("reject", "does not build: import, entry point, parameter count, missing dependency"),
    "runtime_error": ("reject", "raised an exception"),
    "crashed": ("reject", "its process ended: signal, os._exit"),
    "timeout": ("reject", "its process had to be killed"),
    "out_of_memory": ("reject", "exceeded the memory limit or could not allocate"),
    "bad_output": ("reject", "outputs of the wrong count, type, shape, dtype, device or layout, or aliased memory"),
    "unwritten": ("reject", "output elements still hold the bytes that were there before the call"),
    "non_finite": ("reject", "NaN or infinity in an output"),
    "mismatch": ("reject", "outputs beyond the task's tolerance"),
    "nondeterministic": ("reject", "right in one call and wrong in another, on the same inputs"),
    "stale": ("reject", "a call on changed inputs gave another call's results: memoised or computed before the launch"),
    "input_modified": ("reject", "input bytes differ after a call"),
    "leftover": ("reject", "threads, timers, streams or processes still at work after a call returned"),
    "tampered": (
        "reject",
        "replaced what the measurement relies on, spoke for the worker, or had a worker scheduled otherwise",
    ),
    "not_capturable": ("reject", "cannot be captured in a CUDA graph"),
    "bad_samples": ("reject", "time samples that are missing, not finite or not positive"),
    "impossible_time": ("reject", "faster than the bytes and operations of the call allow"),
    "timer_disagrees": ("reject", "claimed times contradict the wall clock of the judging process"),
    "not_materialised": ("void", "a tensor of the workload is not in this checkout"),
    "no_reference": ("void", "the reference cannot be run on the workload, or gives a non-finite result"),
    "not_reached": ("void", "the other side of a duel failed before this one was validated"),
}


class Rejected(Exception):
    """The solution failed a rule: `status` of STATUSES, and what was seen."""

    def __init__(self, status: str, detail: str):
        assert status in STATUSES
        self.status, self.detail = status, " ".join(str(detail).split())[:600]
        super().__init__(f"{status}: {self.detail}")


class CannotJudge(DatasetError):
    """The judge itself cannot do its work here (exit code 2)."""


def is_rejection(status: str) -> bool:
    return STATUSES[status][0] == "reject"
