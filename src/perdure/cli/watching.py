"""Where the watcher and the supervisor meet: a launcher's `NodeEye`, a controller's `JobJudge`.

The supervisor states what it needs (`perdure.supervisor.watching`); here are the processes that have it, `watch_eye` on
each node and `watch_judge` beside the controller. Neither is started before there is something to see: the first ranks
have their cores to themselves while they import.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from perdure.cli.beside import Beside
from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.progress.probing import probe_env, records_folder
from perdure.supervisor.vocabulary import Acknowledge, Mute
from perdure.supervisor.watching import Began, Ending, Found, Gone, Said, Told, Wanted

__all__ = ["FORKED_CALLS", "EyeSetup", "JobJudge", "JudgeSetup", "NodeEye"]

FORKED_CALLS: Final = "perdure.adapters.torch.probe_forked:begin"
"""What ranks that are forked call, so that they are watched as those that start cold."""

_WARM_S: Final = 2.0
_EYE, _JUDGE = "perdure.cli.watch_eye", "perdure.cli.watch_judge"


class EyeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to the process of an eye."""

    folder: str
    node: str
    disks: tuple[str, ...] = ()
    family: tuple[int, ...] = ()


class JudgeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to the process of a judge."""

    folder: str
    "The job's: verdicts are written into it with their evidence, and what is seen of its ranks."
    job: str
    run: str
    phase_deadlines: str = ""


class NodeEye:
    """The eye of a node: a `perdure.supervisor.watching.Eye`. ``env`` is what its ranks are given to be seen.

    ``disks`` are folders that the job writes to, ``family`` processes below which all is of the job.
    """

    def __init__(
        self,
        node: str,
        *,
        base: Mapping[str, str],
        disks: Sequence[str] = (),
        family: Sequence[int] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        self.folder, self._lock = records_folder()
        self._setup = EyeSetup(folder=str(self.folder), node=node, disks=tuple(disks), family=tuple(family))
        self._told: list[Told] = []
        self._beside = Beside(_EYE, first=self._first, what="the watch over its ranks", clock=clock)
        try:
            self.env = probe_env(self.folder, base=base)
        except CallError:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        return self._beside.pid

    def tell(self, what: Told) -> None:
        """Something has happened to the ranks."""
        match what:
            case Began():
                self._told = [what]
                self._forget()
                self._beside.begin(in_s=_WARM_S)
            case Gone():
                self._told.append(what)
                self._beside.begin()
            case Ending():
                self._told.append(what)
            case Wanted() | Said():
                pass  # another process can do without
        self._beside.send(msgspec.json.encode(what))

    def poll(self) -> list[bytes]:
        """What it has seen since the last call."""
        return self._beside.poll()

    def problem(self) -> str:
        """What went wrong since the last call."""
        return self._beside.problem()

    def close(self) -> None:
        """Leave nothing behind."""
        self._beside.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def _first(self) -> Iterator[bytes]:
        yield msgspec.json.encode(self._setup)
        for told in self._told:
            yield msgspec.json.encode(told)

    def _forget(self) -> None:
        """Remove the records of ranks that are gone: each attempt has its own."""
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


class JobJudge:
    """The judge of a job: a `perdure.supervisor.watching.Judge`. It writes what it sees and says into ``folder``."""

    def __init__(self, folder: Path, *, job: str, run: str, phase_deadlines: str = "", clock: Clock = SYSTEM) -> None:
        self._setup = JudgeSetup(folder=str(folder), job=job, run=run, phase_deadlines=phase_deadlines)
        self._mutes: list[Mute] = []
        self._beside = Beside(_JUDGE, first=self._first, what="the watch over the job", clock=clock)

    def take(self, look: bytes) -> None:
        """A launcher has sent what its eye saw."""
        self._beside.begin()
        self._beside.send(b"L" + look)

    def tell(self, what: Mute | Acknowledge) -> None:
        """A person has said something about incidents."""
        if isinstance(what, Mute):
            self._mutes.append(what)
        self._beside.send(b"M" + msgspec.json.encode(what))

    def poll(self) -> Found:
        """What it has found since the last call."""
        found = [msgspec.json.decode(body, type=Found) for body in self._beside.poll()]
        judged = tuple(said for each in found for said in each.judged)
        return Found(judged, tuple(dict.fromkeys(rank for each in found for rank in each.wanted)), bool(found))

    def problem(self) -> str:
        """What went wrong since the last call."""
        return self._beside.problem()

    def close(self) -> None:
        """End it."""
        self._beside.close()

    def _first(self) -> Iterator[bytes]:
        yield b"S" + msgspec.json.encode(self._setup)
        for mute in self._mutes:
            yield b"M" + msgspec.json.encode(mute)
