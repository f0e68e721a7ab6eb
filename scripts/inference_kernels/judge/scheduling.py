"""The scheduling state of a process: how its threads are scheduled, and its limits. Times depend on it.

A candidate may change neither its own scheduling nor anything of the baseline's. What it changes and restores within
one call is not seen.
"""

import contextlib
import os
import resource
from typing import Any

# RLIMIT_OFILE is another name of RLIMIT_NOFILE.
LIMITS = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}
SCHEDULING = {
    "scheduling class": os.sched_getscheduler,
    "real-time priority": lambda thread: os.sched_getparam(thread).sched_priority,
    "niceness": lambda thread: os.getpriority(os.PRIO_PROCESS, thread),
}


def scheduling_state(pid: int) -> dict[str, Any]:
    """Read SCHEDULING of the main thread, by these names, that of each other thread, and the limits.

    What the system does not tell is left out, and so are threads that ended meanwhile.
    """
    found: dict[str, Any] = {}
    for name, limit in LIMITS.items():
        with contextlib.suppress(OSError):
            found[f"limit {name}"] = resource.prlimit(pid, limit)
    for thread in _threads(pid):
        whose = "" if thread == pid else f" of thread {thread}"
        with contextlib.suppress(OSError):
            found |= {name + whose: look(thread) for name, look in SCHEDULING.items()}
    return found


def _threads(pid: int) -> list[int]:
    try:
        return list(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Describe what both states have and is not equal."""
    return [
        f"{name} was {before[name]}, is {after[name]}"
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]
