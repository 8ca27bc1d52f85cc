"""The process that judges a job beside its controller: ``python -m perdure.cli.watch_judge FD``.

`Judging` is what it does, without I/O. Two things lie between the watcher's `JobWatch` and a controller:

- *Names.* The watcher counts incidents within its own life. Here an incident is called ``RUN-ATTEMPT.NUMBER``, and no
  other of the job is, also after this process or the controller was started again.
- *The past*, which outlives this process in the file of verdicts.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from perdure.cli.beside import Frames
from perdure.cli.verdict_file import Line, VerdictFile, past_of, read_lines
from perdure.cli.watch_eye import unpacked
from perdure.cli.watching import JudgeSetup
from perdure.errors import CallError, ProtocolError
from perdure.progress import phase_deadlines
from perdure.supervisor.vocabulary import Acknowledge, Judged, Mute
from perdure.supervisor.watching import Found
from perdure.watcher.analyser import Settings
from perdure.watcher.evidence import Verdict
from perdure.watcher.job_watch import JobWatch
from perdure.watcher.labels import Label
from perdure.watcher.recording import VERDICTS, WatchRecord
from perdure.watcher.samples import NodeLook

__all__ = ["Judging"]

_PERIOD_S: Final = 1.0
_SOONEST_S: Final = 0.1
_MOST_HELD: Final = 1 << 15


class Judging:
    """Drives ``watch``. ``known`` are the lines of the file of verdicts, from which names go on; ``run`` is this run's.

    `turn` returns what is to be written, and says it again in the controller's words by `found`. ``seen`` are the looks
    of the last turn.
    """

    def __init__(self, watch: JobWatch, *, run: str, known: Sequence[Line] = ()) -> None:
        self._watch, self._run = watch, run
        self.seen: list[NodeLook] = []
        self._names: dict[str, tuple[str, int]] = {}
        self._numbers: dict[int, int] = {}
        for line in known:
            if line.run == run:
                number = int(line.incident.rpartition(".")[2])
                self._numbers[line.attempt] = max(number, self._numbers.get(line.attempt, 0))
        self._looks: deque[NodeLook] = deque(maxlen=_MOST_HELD)
        self._dead: set[tuple[int, int]] = set()

    def take(self, look: NodeLook) -> bool:
        """Take a look; whether it should be judged at once, as a rank has ended."""
        self._looks.append(look)
        ended = {(look.attempt, each.rank) for each in look.samples if each.ended}
        fresh = look.attempt == (self._watch.attempt or 0) and not ended <= self._dead
        self._dead |= ended
        return fresh

    def tell(self, said: Mute | Acknowledge, *, now_s: float) -> None:
        """A person has said ``said``; about an incident that is over it says nothing any more."""
        try:
            if isinstance(said, Acknowledge):
                ours = next((name for name, (told, _) in self._names.items() if told == said.incident), "")
                self._watch.acknowledge(ours)
            else:
                self._watch.mute(
                    label=Label(said.label) if said.label else None,
                    node=said.node or None,
                    rank=said.rank,
                    until_s=None if said.for_s is None else now_s + said.for_s,
                )
        except (CallError, ValueError):
            pass

    def turn(self, *, now_s: float, wall_s: float) -> list[Line]:
        """Judge what has arrived; return what is new or has changed, as it is to be written."""
        self.seen = looks = list(self._looks)
        self._looks.clear()
        n_acted = len(self._watch.past.entries)
        told = self._watch.feed(looks, now_s=now_s)
        new = self._watch.past.entries[n_acted:] if len(self._watch.past.entries) > n_acted else ()
        lines = []
        for verdict in told:
            name, attempt = self._name(verdict)
            at = [e for e in new if (e.at_s, e.label, e.action) == (verdict.at_s, verdict.label, verdict.action)]
            fields = msgspec.structs.asdict(verdict) | {"incident": name, "wall_s": wall_s}
            where = at[0].where if at else None
            lines.append(Line(**fields, run=self._run, attempt=attempt, where=where))
        return lines

    def found(self, lines: Sequence[Line]) -> Found:
        """``lines`` in the controller's words, and the ranks whose stacks would help."""
        return Found(tuple(map(_judged, lines)), self._watch.wants_stacks())

    def _name(self, verdict: Verdict) -> tuple[str, int]:
        if verdict.incident not in self._names:
            attempt = self._watch.attempt or 0
            self._numbers[attempt] = number = self._numbers.get(attempt, 0) + 1
            self._names[verdict.incident] = f"{self._run[:4]}-{attempt}.{number}", attempt
        return self._names[verdict.incident]


def _judged(line: Line) -> Judged:
    return Judged(
        attempt=line.attempt,
        incident=line.incident,
        stage=line.stage.value,
        label=line.label.value,
        owner=line.owner.value,
        action=line.action.value,
        confidence=line.confidence,
        sentence=line.sentence,
        ranks=line.ranks,
        nodes=line.nodes,
        step=line.step,
    )


def main(fd: int) -> None:
    """Judge until the controller is gone."""
    frames = Frames(socket.socket(fileno=fd))
    while not (waiting := frames.receive()):
        select.select([frames], [], [])
    setup = msgspec.json.decode(waiting.pop(0)[1:], type=JudgeSetup)
    folder = Path(setup.folder)
    file = folder / VERDICTS
    known = read_lines(file)
    past = past_of(known, now_s=time.monotonic(), wall_s=time.time())
    settings = Settings(phase_deadlines=phase_deadlines(setup.phase_deadlines))
    watch = JobWatch(settings, past=past)
    judging, written = Judging(watch, run=setup.run, known=known), VerdictFile(file)
    with WatchRecord(folder, job=setup.job, verdicts=False) as record:
        judged_s, soon = 0.0, False
        while True:
            for body in waiting:
                if body[:1] == b"L":
                    try:
                        soon |= judging.take(unpacked(body[1:]))
                    except ProtocolError as error:
                        print(error, file=sys.stderr)  # a launcher of another release: the others can be judged
                else:
                    said = msgspec.json.decode(body[1:], type=Mute | Acknowledge)
                    judging.tell(said, now_s=time.monotonic())
            now = time.monotonic()
            if now - judged_s >= (_SOONEST_S if soon else _PERIOD_S):
                judged_s, soon = now, False
                lines = judging.turn(now_s=now, wall_s=time.time())
                try:
                    written.append(lines)
                except OSError as error:
                    print(
                        f"cannot write {file}: {error.strerror}", file=sys.stderr
                    )  # what was found is told all the same
                frames.send(msgspec.json.encode(judging.found(lines)))
                record.give(lines, looks=judging.seen, still_open=watch.open, now_s=now)
            left_s = judged_s + (_SOONEST_S if soon else _PERIOD_S) - time.monotonic()
            select.select([frames], [], [], max(left_s, 0.0))
            waiting = frames.receive()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except EOFError:
        pass
