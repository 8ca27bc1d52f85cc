"""How much memory can be had: what the kernel reckons for the machine, and what the limits of this process leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_nbytes", "oom_kills", "total_nbytes"]

_ANY = 1 << 62


def available_nbytes(*, root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping and without exceeding a limit of a cgroup, version 1 or 2.

    Of page cache in a cgroup what has not been used lately counts as free, as it does for the machine. ``root`` is
    where ``proc`` and ``sys`` are.
    """
    lefts = [at_most - taken + _counted(stat, cache) for at_most, taken, stat, cache in _of_cgroups(root)]
    return max(0, min([_of_machine(root, "MemAvailable:"), *lefts]))


def total_nbytes(*, root: Path = Path("/")) -> int | None:
    """Bytes that this process and its neighbours in its cgroups may ever take: the machine's, or the tightest limit."""
    total = min([_of_machine(root, "MemTotal:"), *(at_most for at_most, *_ in _of_cgroups(root))])
    return total if total < _ANY else None


def oom_kills(*, root: Path = Path("/")) -> int:
    """How often the kernel killed a process of our memory cgroup because memory ran out; 0 if that is not known."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            file = root / "sys/fs/cgroup" / path.lstrip("/") / "memory.events"
        elif "memory" in kinds.split(","):
            file = root / "sys/fs/cgroup/memory" / path.lstrip("/") / "memory.oom_control"
        else:
            continue
        if file.exists():
            return _counted(file, "oom_kill")
    return 0


def _of_machine(root: Path, name: str) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return _ANY
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), _ANY)


def _of_cgroups(root: Path) -> Iterator[tuple[int, int, Path, str]]:
    """Each limit above this process, what is taken of it, and where the cache in that is counted, under which name.

    Limits that cannot be read are not there.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            top, limit, used, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in kinds.split(","):
            top = root / "sys/fs/cgroup/memory"
            limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):  # a container may not see the folder that the host names
            if folder != top and top not in folder.parents:
                break
            at_most, taken = _number(folder / limit), _number(folder / used)
            if at_most is not None and taken is not None:
                yield at_most, taken, folder / "memory.stat", cache


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _counted(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
