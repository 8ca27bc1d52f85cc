"""Which log has fallen silent while the others go on: weak, and never more than a suspicion. Pure.

Each writer is compared with itself: it is *regular* once five of its pauses are known, and *silent* when it has not
written for five times its longest (which fades, by a fiftieth a pause), at least ``floor_s``. One that is silent is
suspected if at least half of the regular ones have written within their own measure since it stopped, and no more than
a quarter of them are silent. That is innocent if a rank just has nothing more to say, so nothing is done about it. When
all regular writers are silent, that is told too, and nobody is suspected: a job that hangs looks so, and one that has
ended.

What was not looked at is nobody's silence: when the looking itself was late, all pauses are given that time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.watcher.evidence import Evidence
from perdure.watcher.samples import Looks

__all__ = ["LogPulse", "Writer"]

_REGULAR: Final = 5
_TIMES: Final = 5.0
_FADES: Final = 0.98
_LATE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes a log: a rank if that is known, else a file."""

    rank: int | None
    file: str


@dataclass(slots=True)
class _Pulse:
    writer: Writer
    wrote_s: float
    pauses: int = 0
    longest_s: float = 0.0

    def limit_s(self, floor_s: float) -> float:
        return max(floor_s, _TIMES * self.longest_s)


class LogPulse:
    """A detector of `Analyser`: `wrote` is called for all who wrote since the last look, then `feed`."""

    def __init__(self, *, floor_s: float = 60.0) -> None:
        self._floor_s = floor_s
        self._pulses: dict[Hashable, _Pulse] = {}
        self._looked_s: float | None = None

    def wrote(self, writers: Mapping[Hashable, Writer], *, now_s: float) -> None:
        """These have written since the call before; a key stays the same while a writer is the same."""
        if self._looked_s is not None and (late_s := now_s - self._looked_s - _LATE_S) > 0:
            for pulse in self._pulses.values():
                pulse.wrote_s += late_s
        self._looked_s = now_s
        for key, writer in writers.items():
            known = self._pulses.get(key)
            if known is None:
                self._pulses[key] = _Pulse(writer, now_s)
                continue
            known.longest_s = max(now_s - known.wrote_s, _FADES * known.longest_s)
            known.writer, known.wrote_s, known.pauses = writer, now_s, known.pauses + 1

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """Who is silent now."""
        regular = [each for each in self._pulses.values() if each.pauses >= _REGULAR]
        silent = [each for each in regular if now_s - each.wrote_s > each.limit_s(self._floor_s)]
        if not silent:
            return []
        if len(silent) == len(regular):
            return self._all_silent(regular, now_s)
        if len(silent) > max(1, len(regular) // 4):
            return []
        stopped_s = min(each.wrote_s for each in silent)
        going = [each for each in regular if each not in silent and each.wrote_s > stopped_s]
        if 2 * len(going) < len(regular):
            return []
        return [self._one(each, len(going), now_s) for each in silent]

    def restarted(self, attempt: int) -> None:
        """Other ranks write, into other files."""
        self._pulses.clear()

    def _one(self, pulse: _Pulse, n_going: int, now_s: float) -> Evidence:
        who = pulse.writer.file if pulse.writer.rank is None else f"rank {pulse.writer.rank} ({pulse.writer.file})"
        others = "another log goes on" if n_going == 1 else f"{n_going} others go on"
        return Evidence(
            kind="log-silent",
            at_s=now_s,
            ranks=() if pulse.writer.rank is None else (pulse.writer.rank,),
            sentence=f"the log of {who} has had no line for {now_s - pulse.wrote_s:.0f} s, while {others}",
            raw=(pulse.writer.file, f"longest pause before: {pulse.longest_s:.1f} s"),
        )

    def _all_silent(self, regular: Sequence[_Pulse], now_s: float) -> list[Evidence]:
        quiet_s = min(now_s - each.wrote_s for each in regular)
        longest_s = max(each.longest_s for each in regular)
        text = f"no log has had a line for {quiet_s:.0f} s: the job hangs, or has ended"
        raw = tuple(each.writer.file for each in regular[:6])
        raw += (f"longest pause before: {longest_s:.1f} s",)
        return [Evidence(kind="log-silent", at_s=now_s, sentence=text, strength=0.5, raw=raw)]
