"""How many threads the tensor kernels of this process use, chosen on purpose rather than by default.

torch takes every core it sees. For small models that is slower than one thread, and on a shared machine far slower:
OpenMP threads wait for each other by spinning, and a thread without a core makes all others spin for its time slice.
The number also belongs to a run's reproducibility (sums are split by threads), so commits record it.
"""

import os
from pathlib import Path

SMALL_MODEL_PARAMETERS = 20_000_000
MOST_THREADS = 8  # beyond it, matrix products of the sizes trained on a CPU gain little

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def set_threads(requested: int | None) -> int:
    """Set the threads of torch, OpenMP and MKL in this process and its children; call it before the first kernel.

    Args:
        requested: how many; None takes OMP_NUM_THREADS, or else this rank's share of the physical cores, at most 8.

    Returns:
        The number set.

    Raises:
        ValueError: fewer than one.
    """
    import torch

    count = (_from_environment() or _share()) if requested is None else requested
    if count < 1:
        raise ValueError(f"{count} threads were asked for; at least 1 is needed")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    # Tokenizers' own thread pool deadlocks in forked children, and says so at length.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(count)
    return count


def default_threads(parameters: int) -> int:
    """The number of threads for a run whose largest model has so many parameters.

    OMP_NUM_THREADS, if set, decides. Otherwise a model below 20 million parameters gets one thread: its kernels take
    microseconds, which is what starting and joining a parallel region costs. With two OpenMP threads on a two-core
    machine with other work on it, a step of such a model was measured to take ten times as long as with one.
    """
    if (from_environment := _from_environment()) is not None:
        return from_environment
    return 1 if parameters < SMALL_MODEL_PARAMETERS else _share()


def _share() -> int:
    """The cores of a rank, where several share the node: more threads than cores wait for each other by spinning."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(here) if here.isdigit() and int(here) > 0 else 1
    return max(1, min(usable_cores() // ranks, MOST_THREADS))


def _from_environment() -> int | None:
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # it may be a list, one number per nesting level
    return int(text) if text.isdigit() and int(text) > 0 else None


def usable_cores() -> int:
    """Physical cores this process may run on: by its affinity, without hyper-threads, within a container's quota."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in cpus})
    return max(1, min(cores, _quota() or cores))


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> int | None:
    """Whole cores that a container's CPU quota amounts to; None without one."""
    try:
        limit, period = _QUOTA.read_text().split()[:2]
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(1, int(limit) // int(period))
