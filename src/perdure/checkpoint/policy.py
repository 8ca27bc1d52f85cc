"""Which codec each tensor of a save takes, and when a save is a delta: by size, speed, and the time there is.

Theory. A block can lie raw, be coded alone, or on a base. What each way would take is estimated from a few hundred
elements (`perdure.state.relating`) and corrected by what the last saves really came to; how fast each codec is here is
measured on the first block that could take it, and from then on by the work itself, as is how fast the store writes. So
the choice follows the training: as updates get smaller, deltas win; after a jump of the learning rate they do not.

- ``auto`` makes a step durable soonest: of each block the way with the least coding time + bytes / store bandwidth. On
  a fast disk that is raw, behind a slow link it is the smallest. If looking took longer than it gained, the next
  saves are raw unlooked at.
- ``lossless`` makes it smallest, within the *slack*: what there is of time between two saves. If that is too short, the
  blocks whose coding saves the fewest bytes a second go back to raw.

A save that uses a base is a *delta*; its base is a full save, so no save needs more than one other. A full one is due

- when there is no base: at the start, on another mesh, when the base is gone from the run or from memory;
- when the delta would be no smaller than the mean of all saves since the base, that one included: from there on each
  further delta makes the mean larger;
- after `MOST_ON_ONE_BASE` saves, so that damage to one file never takes more steps than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from perdure.codec.dtypes import DTYPES
from perdure.state.again import Estimate, Findings
from perdure.state.pricing import codec_for

__all__ = ["LEAST_BYTES", "MOST_ON_ONE_BASE", "Choice", "Kind", "Offered", "Policy"]

LEAST_BYTES: Final = 1 << 14
"""Blocks of fewer bytes lie raw."""
MOST_ON_ONE_BASE: Final = 16

_LEAST_GAIN: Final = 0.02
_NEWEST: Final = 0.5  # the weight of the newest measurement
_SLACK: Final = 0.8  # of the time between two saves
_UNLOOKED: Final = 8  # so many saves are raw after one that was not worth looking at
_SMALLER, _LARGER = 0.7, 1.1  # what becomes of the allowance after a save that came too late, and after one in time

Way = Literal["raw", "alone", "on"]


class Kind(NamedTuple):
    """What is alike in speed: ``on`` says whether there is a base to be computed and read."""

    codec: str
    dtype: str
    on: bool


@dataclass(frozen=True, slots=True)
class Offered:
    """A block and what it would cost. ``nbytes`` are those of the block as it is."""

    key: str
    dtype: str
    nbytes: int
    estimate: Estimate

    def kind(self, way: Way) -> Kind:
        """What it would be coded with."""
        return Kind("planes" if way == "alone" else codec_for(self.dtype), self.dtype, way == "on")

    @property
    def ways(self) -> tuple[Way, ...]:
        """How it could be coded."""
        return ("alone",) if self.estimate.relation is None else ("alone", "on")

    def bits(self, way: Way) -> float | None:
        """The estimate for ``way``, in bits an element, if there is one."""
        return self.estimate.alone if way == "alone" else self.estimate.on


@dataclass(frozen=True, slots=True)
class Choice:
    """How a block is stored, what that is expected to take, and why."""

    way: Way
    nbytes: float
    coding_s: float
    why: str


@dataclass(slots=True)
class _Seen:
    """What coding of one kind came to since the last look."""

    nbytes: int = 0
    seconds: float = 0.0
    coded: int = 0
    expected: float = 0.0


@dataclass(slots=True)
class Policy:
    """What one writer has learned; `choose` is pure given that. Of one thread."""

    bandwidth: float | None = None
    """bytes a second that the store writes, durably"""
    slack_s: float | None = None
    """seconds that a save may take, if that is known"""
    speeds: dict[Kind, float] = field(default_factory=dict)
    """bytes of tensors a second"""
    scales: dict[Kind, float] = field(default_factory=dict)
    """by how much the estimates of a kind were too small"""
    findings: dict[bool, Findings] = field(default_factory=dict)
    """what was found in the last save with a base (True) and in the last without"""
    _seen: dict[Kind, _Seen] = field(default_factory=dict)
    _since_base: list[float] = field(default_factory=list)  # sizes over raw of the base's save and those on it
    _allowance: float = _SLACK
    _unlooked: int = 0
    _gain_s: float = 0.0  # that the last choice was to make the save shorter
    _searched: bool = False  # in this save, for relations

    # --- learning ----------------------------------------------------------------------------------------------------

    def unknown(self, offers: Iterable[Offered]) -> dict[Kind, tuple[Offered, Way]]:
        """For each kind whose speed is not known, the largest block to measure it on."""
        found: dict[Kind, tuple[Offered, Way]] = {}
        for each in offers:
            for way in each.ways:
                kind = each.kind(way)
                if kind not in self.speeds and (kind not in found or found[kind][0].nbytes < each.nbytes):
                    found[kind] = each, way
        return found

    def coded(self, offered: Offered, way: Way, nbytes: int, seconds: float) -> None:
        """A block (or a sample: give its ``offered`` with that many bytes) took ``nbytes`` and ``seconds``."""
        seen = self._seen.setdefault(offered.kind(way), _Seen())
        seen.nbytes += offered.nbytes
        seen.seconds += seconds
        expected = _plain(offered, way)
        if expected is not None:
            seen.coded += nbytes
            seen.expected += expected

    def wrote(self, nbytes: int, seconds: float) -> None:
        """The store took ``nbytes``."""
        if nbytes >= LEAST_BYTES and seconds > 0:
            self.bandwidth = _mean(self.bandwidth, nbytes / seconds)

    def learn(self) -> None:
        """Take in what was `coded` since the last call."""
        for kind, seen in self._seen.items():
            if seen.nbytes:
                self.speeds[kind] = _mean(self.speeds.get(kind), seen.nbytes / max(seen.seconds, 1e-9))
            if seen.expected > 0:
                self.scales[kind] = _mean(self.scales.get(kind), seen.coded / seen.expected)
        self._seen.clear()

    def looked(self, seconds: float) -> None:
        """It took ``seconds`` to estimate and choose.

        What a search took says nothing: the next save tries first what it found, which takes far less.
        """
        wasted = self.bandwidth is not None and seconds > self._gain_s and not self._searched
        self._unlooked, self._searched = _UNLOOKED if wasted else 0, False

    def found(self, findings: Findings, *, on: bool) -> None:
        """What a save found, ``on`` a base or without one; the next like it tries that first."""
        self.findings[on] = findings
        self._searched = self._searched or bool(findings.searched)

    def paced(self, between_s: float | None, *, late: bool) -> None:
        """A save begins ``between_s`` after the one before; ``late`` if that one was still being written then."""
        if between_s is None:
            return
        self._allowance = max(0.05, self._allowance * _SMALLER) if late else min(_SLACK, self._allowance * _LARGER)
        self.slack_s = self._allowance * between_s

    def ended(self, nbytes: int, raw_nbytes: int, *, delta: bool) -> None:
        """A save is durable that wrote ``nbytes`` for ``raw_nbytes`` of tensors. A full one is the base of the next."""
        if not delta:
            self._since_base.clear()
        self._since_base.append(nbytes / max(raw_nbytes, 1))

    @property
    def told(self) -> str:
        """What choices go by, as the end of a sentence."""
        store = "" if self.bandwidth is None else f", the store writes {self.bandwidth / 1e6:.0f} MB/s"
        return store + ("" if self.slack_s is None else f", {self.slack_s:.1f} s are there for it")

    # --- choosing ----------------------------------------------------------------------------------------------------

    def due(self, size: float) -> str | None:
        """Why a full save is due, if it is: ``size`` is that of the delta over raw."""
        if not self._since_base:
            return "nothing is known of its base"
        if len(self._since_base) > MOST_ON_ONE_BASE:
            return f"{MOST_ON_ONE_BASE} saves are deltas on one base"
        mean = sum(self._since_base) / len(self._since_base)
        if size >= mean:
            return f"a delta would be {size:.2f} of raw, the mean since its base is {mean:.2f}"
        return None

    def worth_a_look(self, goal: str) -> bool:
        """Whether coding may pay, going by the saves before; asked once a save."""
        if goal == "lossless" or self.bandwidth is None:
            return True
        if self._unlooked:
            self._unlooked -= 1
            return False
        return not self.speeds or max(self.speeds.values()) > self.bandwidth

    def keeps_base(self, goal: str) -> bool:
        """Whether deltas could be worth the memory of a base, going by what is known."""
        if goal == "lossless":
            return True
        if self._unlooked:
            return False
        on = [speed for kind, speed in self.speeds.items() if kind.on]
        return self.bandwidth is None or not on or max(on) > self.bandwidth

    def choose(self, offers: Iterable[Offered], goal: str) -> dict[str, Choice]:
        """A choice for each block; ``goal`` is "auto" or "lossless"."""
        chosen: dict[str, Choice] = {}
        saving: list[tuple[float, Offered]] = []
        raw_s = total_s = 0.0
        for each in offers:
            choice = self._choice(each, goal)
            chosen[each.key] = choice
            raw_s += self._writing_s(each.nbytes)
            took = choice.coding_s + self._writing_s(choice.nbytes)
            total_s += took
            if choice.way != "raw" and choice.coding_s > 0:
                spent = took - self._writing_s(each.nbytes)
                if spent > 0:  # a second of which is worth so many bytes
                    saving.append(((each.nbytes - choice.nbytes) / spent, each))
        self._gain_s = raw_s - total_s
        if goal == "auto" or self.slack_s is None or total_s <= self.slack_s:
            return chosen
        saving.sort(key=lambda pair: pair[0])
        for _, each in saving:
            if total_s <= self.slack_s:
                break
            choice = chosen[each.key]
            total_s += self._writing_s(each.nbytes) - choice.coding_s - self._writing_s(choice.nbytes)
            why = f"raw: coding all would take longer than the {self.slack_s:.1f} s between two saves"
            chosen[each.key] = Choice("raw", each.nbytes, 0.0, why)
        return chosen

    def _choice(self, offered: Offered, goal: str) -> Choice:
        raw = Choice("raw", offered.nbytes, 0.0, "raw: no codec makes it smaller by a fiftieth")
        if offered.nbytes < LEAST_BYTES:
            return Choice("raw", offered.nbytes, 0.0, "raw: it is small")
        ways = [self._coded(offered, way) for way in offered.ways]
        small = [each for each in ways if each.nbytes < offered.nbytes * (1 - _LEAST_GAIN)]
        if not small:
            return raw
        if goal == "lossless":
            return min(small, key=lambda each: each.nbytes)
        if self.bandwidth is None:
            return Choice("raw", offered.nbytes, 0.0, "raw: how fast the store writes is not known yet")
        fast = Choice("raw", offered.nbytes, 0.0, "raw: to write it takes less time than to make it smaller")
        return min([fast, *small], key=lambda each: each.coding_s + self._writing_s(each.nbytes))

    def _coded(self, offered: Offered, way: Way) -> Choice:
        kind = offered.kind(way)
        plain = _plain(offered, way)
        nbytes = float(offered.nbytes) if plain is None else min(plain * self.scales.get(kind, 1.0), offered.nbytes)
        seconds = offered.nbytes / self.speeds[kind] if kind in self.speeds else 0.0
        return Choice(way, nbytes, seconds, f"{nbytes / offered.nbytes:.2f} of raw expected")

    def _writing_s(self, nbytes: float) -> float:
        return 0.0 if self.bandwidth is None else nbytes / self.bandwidth


def _plain(offered: Offered, way: Way) -> float | None:
    """The bytes of the estimate, uncorrected."""
    bits = offered.bits(way)
    return None if bits is None else bits * offered.nbytes / (8 * DTYPES[offered.dtype].itemsize)


def _mean(known: float | None, new: float) -> float:
    return new if known is None else (1 - _NEWEST) * known + _NEWEST * new
