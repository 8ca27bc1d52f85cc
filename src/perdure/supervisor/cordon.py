"""Which nodes a job leaves alone, why, and until when.

Pure: a value in, a value out; seconds since 1970 are handed in, because a cordon outlives the machine that wrote it
down. A node comes back by itself when its time is over: most faults are mended by a restart or a person, and a list
that only grows eats the cluster. Two rules bound what a mistaken check can do: never more than a share of the nodes is
cordoned at once, and a node that was at fault again and again (a *lemon*) stays out longer than the others.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.errors import CallError, FormatRefused

__all__ = ["DEFAULT_RULES", "Cordon", "Cordoned", "Fault", "Rules", "Ruling"]

_DAY_S = 86400.0


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes may be out, and for how long."""

    max_share: float = 0.25
    "Of all nodes that the job can have, cordoned at once; rounded down."
    expiry_s: float = 6 * 3600.0
    "How long a node is out, where the caller names no time."
    lemon_faults: int = 3
    "So many faults within the window make a node a lemon."
    window_s: float = 7 * _DAY_S
    "How long a fault is remembered."
    lemon_expiry_s: float = 14 * _DAY_S
    "How long a lemon is out, at least."

    def __post_init__(self) -> None:
        if not 0 <= self.max_share <= 1:
            raise CallError(f"max_share is {self.max_share}; it must be from 0 to 1", max_share=self.max_share)
        if self.lemon_faults < 1:
            raise CallError(f"lemon_faults is {self.lemon_faults}; it must be 1 or more")
        if min(self.expiry_s, self.window_s, self.lemon_expiry_s) <= 0:
            raise CallError("expiry_s, window_s and lemon_expiry_s must be more than 0 seconds")


DEFAULT_RULES = Rules()


class Cordoned(msgspec.Struct, frozen=True):
    """A node that is out from ``since_s`` to before ``until_s``, in seconds since 1970."""

    node: str
    reason: str
    since_s: float
    until_s: float
    lemon: bool = False


class Fault(msgspec.Struct, frozen=True):
    """A node was at fault."""

    node: str
    at_s: float


class Ruling(NamedTuple):
    """What became of the wish to cordon a node: the new value (it remembers a refused fault too), and a sentence."""

    cordon: Cordon
    done: bool
    says: str


class Cordon(msgspec.Struct, frozen=True):
    """The nodes that are out, and the faults that are remembered. Plain JSON for the journal.

    >>> out = Cordon().cordon("node7", "wrong product on core 3", 1000.0, 60.0, n_nodes=8)
    >>> out.says
    'node7 is cordoned for 60 s: wrong product on core 3'
    >>> out.cordon.is_cordoned("node7", 1059.0), out.cordon.is_cordoned("node7", 1060.0)
    (True, False)
    """

    nodes: tuple[Cordoned, ...] = ()
    faults: tuple[Fault, ...] = ()

    def cordon(
        self,
        node: str,
        reason: str,
        now: float,
        expiry_s: float | None = None,
        *,
        n_nodes: int,
        rules: Rules = DEFAULT_RULES,
    ) -> Ruling:
        """Take ``node`` out for ``expiry_s`` (a lemon longer), unless too many of ``n_nodes`` are out already.

        ``n_nodes`` counts those that are cordoned and spares too. A node that is out already stays out until the later
        of the two times.
        """
        wanted_s = rules.expiry_s if expiry_s is None else expiry_s
        if wanted_s <= 0:
            raise CallError(f"a cordon of {wanted_s:g} s is none; give more than 0 seconds", node=node)
        kept = self.pruned(now, rules=rules)
        faults = (*kept.faults, Fault(node, now))
        n_faults = sum(fault.node == node for fault in faults)
        lemon = n_faults >= rules.lemon_faults
        until_s = now + (max(wanted_s, rules.lemon_expiry_s) if lemon else wanted_s)
        others = tuple(out for out in kept.nodes if out.node != node)
        before = next((out for out in kept.nodes if out.node == node), None)
        at_most = int(rules.max_share * n_nodes + 1e-9)
        if before is None and len(others) + 1 > at_most:
            says = (
                f"{node} is not cordoned ({reason}): {len(others)} of {n_nodes} nodes are out already, and at most "
                f"{at_most} may be (a share of {rules.max_share:g}); see to those that are out, or allow a larger share"
            )
            return Ruling(Cordon(kept.nodes, faults), False, says)
        since_s = now
        if before is not None:
            since_s, until_s, lemon = before.since_s, max(until_s, before.until_s), lemon or before.lemon
        entry = Cordoned(node, reason, since_s, until_s, lemon)
        again = f"; it was at fault {n_faults} times in {_span(rules.window_s)}" if lemon else ""
        says = f"{node} is cordoned for {_span(until_s - now)}: {reason}{again}"
        return Ruling(Cordon((*others, entry), faults), True, says)

    def is_cordoned(self, node: str, now: float) -> bool:
        """Whether ``node`` is out. A clock that was set back does not let it in early."""
        return any(out.node == node and now < out.until_s for out in self.nodes)

    def out(self, now: float) -> tuple[Cordoned, ...]:
        """The nodes that are out, with their reasons."""
        return tuple(out for out in self.nodes if now < out.until_s)

    def uncordon(self, node: str) -> Cordon:
        """Let ``node`` in again and forget its faults: a person has seen to it."""
        return Cordon(
            tuple(out for out in self.nodes if out.node != node),
            tuple(fault for fault in self.faults if fault.node != node),
        )

    def pruned(self, now: float, *, rules: Rules = DEFAULT_RULES) -> Cordon:
        """Without what is over and what is too long ago."""
        return Cordon(self.out(now), tuple(fault for fault in self.faults if now - fault.at_s < rules.window_s))

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Cordon:
        """From `encode`; raise `FormatRefused` if ``data`` is something else."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise FormatRefused(f"this is no list of cordoned nodes: {error}; remove it to begin a new one") from error


def _span(seconds: float) -> str:
    for unit, name in ((_DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
