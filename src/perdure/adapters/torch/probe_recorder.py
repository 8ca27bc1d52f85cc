"""What each process group has enqueued and completed: from torch's flight recorder, or by patches where there is none.

The recorder numbers every collective, also those that C++ starts (DDP's reducer), on gloo as on NCCL. Its short answer
(numbers alone) takes microseconds and is asked for each second; its long one names operations and shapes, takes
milliseconds and is asked for once when nothing has moved for 3 s.

It calls groups by the order in which this process made them, which differs between ranks: here they get the names that
all their members know. Order and names are matched by `_Names`, and where a group's own count of its collectives says
otherwise, by that.

The recorder's functions are private to torch. Where they are missing, or it is switched off (TORCH_FR_BUFFER_SIZE=0),
the methods of ``ProcessGroup`` are patched: they count, and name the operation; what was started by C++ is then known
by the group's own count alone, and is taken to be complete unless the main thread waits.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from perdure.process.environ import flight_recorder_entries
from perdure.progress.vitals import GroupVitals

__all__ = ["CALLS", "Counted", "Recorder", "best"]

STILL_S = 3.0

CALLS: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
"""Methods of a process group that begin a collective, and what each is called."""

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "Byte": "uint8", "Char": "int8", "Short": "int16",
    "Int": "int32", "Long": "int64",
}  # fmt: skip


def best(waits: Callable[[], bool]) -> Callable[[], list[GroupVitals]]:
    """Return what tells the groups in this process. ``waits`` says whether the main thread waits in a collective."""
    recorder = Recorder.there()
    if recorder is not None:
        return recorder.groups
    counted = Counted(waits)
    counted.patch()
    return counted.groups


class _Names:
    """The groups of this process, by the numbers that the recorder gives them."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[int, Any]] = {}
        self._seen: set[int] = set()

    def of(self, backend: str) -> Mapping[int, Any]:
        """The groups with a backend of that name, by their order."""
        for group in list(dist.distributed_c10d._world.pg_map):
            if id(group) not in self._seen:
                self._seen.add(id(group))  # kept below, so the identity stays its own
                for name in _backends(group):
                    known = self._numbers.setdefault(name, {})
                    known[len(known)] = group
        return self._numbers.get(backend, {})


class Recorder:
    """Torch's flight recorder."""

    def __init__(self, dumps: Mapping[str, Callable[..., bytes]]) -> None:
        self._dumps = dumps
        self._names = _Names()
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self._ops: dict[tuple[str, int], tuple[int, str, str]] = {}
        self._moved = time.monotonic()
        self._asked = False

    @classmethod
    def there(cls) -> Recorder | None:
        """The recorder, if this torch has one that records."""
        native = sys.modules.get("torch._C._distributed_c10d")
        names = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
        dumps = {backend: getattr(native, name) for backend, name in names.items() if hasattr(native, name)}
        try:
            for dump in dumps.values():
                json.loads(dump(includeCollectives=False))["version"]
        except (TypeError, KeyError, ValueError):
            return None
        return cls(dumps) if "gloo" in dumps and _records() else None

    def groups(self) -> list[GroupVitals]:
        """What was done in each group that has done anything, the last that moved first. Called each second."""
        now = time.monotonic()
        found: list[tuple[bool, GroupVitals]] = []
        for backend, dump in self._dumps.items():
            status = json.loads(dump(includeCollectives=False)).get("pg_status", {})
            groups = self._names.of(backend)
            for key, counts in status.items():
                number = int(key)
                enqueued = max(0, int(counts["last_enqueued_collective"]))
                completed = max(0, int(counts["last_completed_collective"]))
                moved = self._last.get((backend, number)) != (enqueued, completed)
                if moved:
                    self._last[backend, number] = enqueued, completed
                    self._moved, self._asked = now, False
                group = _match(groups, number, enqueued)
                if group is None:
                    continue
                at, op, shape = self._ops.get((backend, number), (0, "", ""))
                told = (op, shape) if at == enqueued else ("", "")
                vitals = GroupVitals(
                    group=group.group_name,
                    size=group.size(),
                    enqueued=enqueued,
                    completed=completed,
                    op=told[0],
                    shape=told[1],
                )
                found.append((not moved and enqueued == completed, vitals))
        if found and not self._asked and now - self._moved > STILL_S:
            self._asked = True
            self._ask()
            return self.groups()
        return [vitals for _, vitals in sorted(found, key=lambda each: each[0])]

    def _ask(self) -> None:
        """Learn the last operation of each group."""
        for backend, dump in self._dumps.items():
            entries = json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", [])
            for entry in entries[-500:]:
                if not entry.get("is_p2p"):
                    op = str(entry.get("profiling_name", "")).rpartition(":")[2]
                    shape = _shape(entry.get("input_sizes"), entry.get("input_dtypes"))
                    self._ops[backend, int(entry["pg_id"])] = int(entry["collective_seq_id"]), op, shape


class Counted:
    """Counts by patches of ``ProcessGroup``, for a torch without a flight recorder."""

    def __init__(self, waits: Callable[[], bool]) -> None:
        self._waits = waits
        self._counts: dict[str, int] = {}
        self._calls: dict[str, tuple[str, Any]] = {}
        self._last = ""
        self.off = False

    def patch(self) -> None:
        """Have each method that begins a collective count."""
        for method, op in CALLS.items():
            before = getattr(dist.ProcessGroup, method, None)
            if before is not None:
                setattr(dist.ProcessGroup, method, self._counting(before, op))

    def groups(self) -> list[GroupVitals]:
        """What was done in each group that has done anything."""
        found = []
        waits = self._waits()
        for group in list(dist.distributed_c10d._world.pg_map):
            name = group.group_name
            enqueued = max(self._counts.get(name, 0), _own_count(group))
            if enqueued == 0:
                continue
            op, tensors = self._calls.get(name, ("", ""))
            behind = 1 if waits and self._last in (name, "") else 0
            found.append(
                GroupVitals(
                    group=name,
                    size=group.size(),
                    enqueued=enqueued,
                    completed=enqueued - behind,
                    op=op,
                    shape=tensors,
                )
            )
        return found

    def _counting(self, before: Callable[..., Any], op: str) -> Callable[..., Any]:
        @functools.wraps(before)
        def begin(group: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                name = group.group_name
                self._counts[name] = self._counts.get(name, 0) + 1
                self._calls[name] = op, _first(args)
                self._last = name
            except Exception:  # a collective is begun whether it is counted or not
                pass
            return before(group, *args, **kwargs)

        return begin


def _records() -> bool:
    """Whether the recorder is switched on, which only a collective could tell: it is unless its buffer has no room."""
    return flight_recorder_entries() != 0


def _backends(group: Any) -> set[str]:
    try:
        return {name.strip() for name in dist.get_backend_config(group).replace(",", ":").split(":")}
    except (RuntimeError, ValueError, KeyError):
        return {group.name()}


def _own_count(group: Any) -> int:
    try:
        return max(0, int(group._get_sequence_number_for_group()))
    except (AttributeError, RuntimeError):
        return 0


def _match(groups: Mapping[int, Any], number: int, enqueued: int) -> Any:
    """The group with that number, unless its own count says otherwise and only one other's count fits."""
    group = groups.get(number)
    if group is not None and (enqueued <= _own_count(group) or _own_count(group) == 0):
        return group
    fits = [each for each in groups.values() if abs(_own_count(each) - enqueued) <= 1]
    return fits[0] if len(fits) == 1 else group


def _shape(sizes: Any, dtypes: Any) -> str:
    if not isinstance(sizes, list) or not sizes:
        return ""
    dtype = str(dtypes[0]) if isinstance(dtypes, list) and dtypes else ""
    dtype = _DTYPES.get(dtype, dtype.lower())
    return f"{sizes[0]} {dtype}".strip()


def _first(args: tuple[Any, ...]) -> str:
    """The shape and dtype of the first tensor among the arguments."""
    for each in args:
        while isinstance(each, list | tuple) and each:
            each = each[0]
        if isinstance(each, torch.Tensor):
            return f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}"
    return ""
