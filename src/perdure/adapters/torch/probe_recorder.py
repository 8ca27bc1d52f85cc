"""What each process group has enqueued and completed: from torch's flight recorder, or by patches where there is none.

The recorder numbers every collective, also those that C++ starts (DDP's reducer), on gloo as on NCCL. Its short answer
(numbers alone) takes microseconds and is asked for each second; its long one names operations and shapes, takes
milliseconds and is asked for when nothing has moved for 3 s, when numbers come under a key that is not known yet, and
when a collective has raised or the groups are about to be taken down.

The short answer has numbers by keys, which count all groups that this process or one that it was forked from has made,
and it never forgets a group that is gone. Which group has a key stands in the long answer, by name. A name can come
again (after ``destroy_process_group``), so a key is taken for a group only if

* it was not there before the group was (as of the last look), and is the newest key of the name; and
* it has counted what the group itself has counted.

A group with no such key is told by its own count, and never by another's.

Of collectives that end at the same time gloo's threads may note the last before the one before it, and the number of
the last completed is one too low from then on. The long answer says of each whether it is over.

The recorder's functions are private to torch. Where they are missing, or it is switched off (TORCH_FR_BUFFER_SIZE=0),
the methods of ``ProcessGroup`` are patched: they count, and name the operation; what was started by C++ is then known
by the group's own count alone, and is taken to be complete unless the main thread waits.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from perdure.process.environ import flight_recorder_entries
from perdure.progress.vitals import GroupVitals

__all__ = ["CALLS", "Counted", "Recorder", "best"]

STILL_S = 3.0
_LAG = 8  # collectives that may begin between the recorder's count and the group's own
_ASK_SHARE = 0.001  # of the time, for questions about groups that are not known yet

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


def best(waits: Callable[[], bool], last: Callable[[], bool]) -> Callable[[], list[GroupVitals]]:
    """Return what tells the groups in this process. ``waits`` says whether the main thread waits in a collective,
    ``last`` whether this may be the last answer.
    """
    recorder = Recorder.there()
    if recorder is not None:
        recorder.waits, recorder.last = waits, last
        return recorder.groups
    counted = Counted(waits)
    counted.patch()
    return counted.groups


@dataclass(slots=True)
class _Known:
    """A group, and which keys of each backend are older than it."""

    group: weakref.ref[Any]
    older: Mapping[str, int]
    devices: Mapping[str, str | None]
    "By backend: a device that it is for; None: the group's own."


class _Groups:
    """The groups of this process, and which keys of the recorder are theirs."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._names: dict[str, dict[int, str]] = {}
        self._newest: dict[str, int] = {}

    def look(self) -> list[tuple[Any, _Known]]:
        """The groups that there are now. To be called before the recorder is asked: a group that is new here has no
        key of those that were seen before.
        """
        here = list(dist.distributed_c10d._world.pg_map)
        self._known = {key: each for key, each in self._known.items() if each.group() is not None}
        for group in here:
            if id(group) not in self._known:
                self._known[id(group)] = _Known(weakref.ref(group), dict(self._newest), _devices(group))
        return [(group, self._known[id(group)]) for group in here]

    def saw(self, backend: str, keys: Iterable[int]) -> None:
        """The recorder has counts under these ``keys`` now."""
        self._newest[backend] = max((*keys, self._newest.get(backend, -1)))

    def name(self, backend: str, key: int, name: str) -> None:
        """The group of that ``key`` has this ``name``."""
        self._names.setdefault(backend, {})[key] = name

    def unnamed(self, backend: str, keys: Iterable[int]) -> set[int]:
        """Those ``keys`` whose names are not known."""
        return set(keys) - self._names.get(backend, {}).keys()

    def key_of(self, backend: str, group: Any, known: _Known) -> int | None:
        """The newest key of the group's name that is not older than the group, if there is one."""
        names = self._names.get(backend, {})
        newer = (key for key, name in names.items() if name == group.group_name and key > known.older.get(backend, -1))
        return max(newer, default=None)


class Recorder:
    """Torch's flight recorder."""

    def __init__(self, dumps: Mapping[str, Callable[..., bytes]]) -> None:
        self.waits: Callable[[], bool] = _never
        self.last: Callable[[], bool] = _never
        self._dumps = dumps
        self._groups = _Groups()
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self._ops: dict[tuple[str, int], tuple[int, str, str, int]] = {}
        self._moved = time.monotonic()
        self._asked = False
        self._ask_after = 0.0

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
        groups = self._groups.look()
        counts = {backend: _counts(dump) for backend, dump in self._dumps.items()}
        moved = {
            (backend, key)
            for backend, numbers in counts.items()
            for key, number in numbers.items()
            if self._last.get((backend, key)) != number
        }
        if moved:
            self._last.update({(backend, key): counts[backend][key] for backend, key in moved})
            self._moved, self._asked = now, False
        new = any(self._groups.unnamed(backend, (key for b, key in moved if b == backend)) for backend in counts)
        still = bool(groups) and not self._asked and now - self._moved > STILL_S
        if still or self.last() or (new and now >= self._ask_after):
            self._asked, self._ask_after = still, now + self._ask()
        for backend, numbers in counts.items():
            self._groups.saw(backend, numbers)
        found = [each for group, known in groups for each in self._of(group, known, counts, moved)]
        return [vitals for _, vitals in sorted(found, key=lambda each: each[0])]

    def _of(
        self,
        group: Any,
        known: _Known,
        counts: Mapping[str, Mapping[int, tuple[int, int]]],
        moved: Collection[tuple[str, int]],
    ) -> list[tuple[bool, GroupVitals]]:
        """What a group has done, by each of its backends; in front whether it rests."""
        found = []
        for backend, device in known.devices.items():
            own = _own_count(group, device)
            key = self._groups.key_of(backend, group, known)
            enqueued, completed = (0, 0) if key is None else counts.get(backend, {}).get(key, (0, 0))
            op = shape = ""
            if key is not None and abs(own - enqueued) <= _LAG:
                rests = (backend, key) not in moved and enqueued == completed
                at, *told, done = self._ops.get((backend, key), (0, "", "", 0))
                if at == enqueued:
                    op, shape = told
                    completed = max(completed, done)
            else:
                enqueued, completed = own, own - (1 if self.waits() else 0)
                rests = enqueued == completed
            if enqueued > 0:
                vitals = GroupVitals(
                    group=group.group_name,
                    size=group.size(),
                    enqueued=enqueued,
                    completed=max(0, completed),
                    op=op,
                    shape=shape,
                )
                found.append((rests, vitals))
        return found

    def _ask(self) -> float:
        """Learn the names of groups and the last operation of each; return for how long not to ask again."""
        began = time.monotonic()
        for backend, dump in self._dumps.items():
            pending: dict[int, int] = {}
            for entry in json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", []):
                key = int(entry["pg_id"])
                self._groups.name(backend, key, str(entry["process_group"][0]))
                if not entry.get("is_p2p"):
                    op = str(entry.get("profiling_name", "")).rpartition(":")[2]
                    shape = _shape(entry.get("input_sizes"), entry.get("input_dtypes"))
                    number = int(entry["collective_seq_id"])
                    if backend == "gloo" and not entry.get("retired"):
                        pending.setdefault(key, number)
                    self._ops[backend, key] = number, op, shape, pending.get(key, number + 1) - 1
        return (time.monotonic() - began) / _ASK_SHARE


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


def _never() -> bool:
    return False


def _counts(dump: Callable[..., bytes]) -> dict[int, tuple[int, int]]:
    """The short answer: by key, the last collective enqueued and completed."""
    status = json.loads(dump(includeCollectives=False)).get("pg_status", {})
    last = "last_enqueued_collective", "last_completed_collective"
    return {int(key): (max(0, int(each[last[0]])), max(0, int(each[last[1]]))) for key, each in status.items()}


def _devices(group: Any) -> dict[str, str | None]:
    """The backends of a group, each with one device that it is for."""
    try:
        words = dict(each.split(":") for each in dist.get_backend_config(group).split(","))
    except (RuntimeError, ValueError, KeyError):
        return {group.name(): None}
    return {backend: device for device, backend in reversed(words.items())}


def _own_count(group: Any, device: str | None = None) -> int:
    """The collectives that a group itself has counted, on its backend for ``device``; 0 where it counts none."""
    try:
        counter = group if device is None else group._get_backend(torch.device(device))
        return max(0, int(counter._get_sequence_number_for_group()))
    except (AttributeError, RuntimeError):
        return 0


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
