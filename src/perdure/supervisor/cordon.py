"""Which nodes a job leaves alone, why, and until when.

Pure: a value in, a value out; seconds since 1970 are handed in, because a cordon outlives the machine that wrote it
down. A node comes back by itself when its time is over: most faults are mended by a restart or a person, and a list
that only grows eats the cluster. Two rules bound what a mistaken check can do: never more than a share of the nodes is
cordoned at once, and a node that was at fault again and again (a *lemon*) stays out longer than the others.
"""

from __future__ import annotations

import msgspec

from perdure.errors import CallError, FormatRefused

__all__ = ["DEFAULT_RULES", "Cordon", "Cordoned", "Fault", "Rules"]

_DAY_S = 86400.0


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes may be out, and for how long."""

    max_share: float = 0.25
    "Of all nodes that the job can have, cordoned at once; rounded down, but one of two or more unless it is 0."
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

    def at_most(self, n_nodes: int) -> int:
        """How many of ``n_nodes`` may be out at once.

        >>> [Rules().at_most(n) for n in (1, 2, 7, 8, 1000)]
        [0, 1, 1, 2, 250]
        """
        return max(int(self.max_share * n_nodes + 1e-9), 1 if self.max_share > 0 and n_nodes > 1 else 0)


DEFAULT_RULES = Rules()


class Cordoned(msgspec.Struct, frozen=True):
    """A node that is out from ``since_s`` to before ``until_s``, in seconds since 1970."""

    node: str
    reason: str
    since_s: float
    until_s: float
    lemon: bool = False

    def __str__(self) -> str:
        again = ", as it is at fault again and again" if self.lemon else ""
        return f"{self.node} is cordoned for {_span(self.until_s - self.since_s)}{again}: {self.reason}"


class Fault(msgspec.Struct, frozen=True):
    """A node was at fault."""

    node: str
    at_s: float


class Cordon(msgspec.Struct, frozen=True):
    """The nodes that are out, and the faults that are remembered. Plain JSON for the journal.

    >>> cordon, refusal = Cordon().cordoned("node7", "wrong on core 3", now=1000.0, expiry_s=60.0, n_nodes=8)
    >>> str(cordon.nodes[0]), refusal
    ('node7 is cordoned for 60 s: wrong on core 3', None)
    >>> cordon.is_cordoned("node7", now=1059.0), cordon.is_cordoned("node7", now=1060.0)
    (True, False)
    """

    nodes: tuple[Cordoned, ...] = ()
    faults: tuple[Fault, ...] = ()

    def cordoned(
        self,
        node: str,
        reason: str,
        *,
        now: float,
        n_nodes: int,
        expiry_s: float | None = None,
        rules: Rules = DEFAULT_RULES,
    ) -> tuple[Cordon, str | None]:
        """Take ``node`` out for ``expiry_s`` (a lemon longer), unless too many of ``n_nodes`` are out already.

        Returns the new value, which remembers the fault in either case, and the refusal, a sentence, if it is one.
        ``n_nodes`` counts those that are cordoned and spares too. A node that is out already stays out until the later
        of the two times.
        """
        wanted_s = rules.expiry_s if expiry_s is None else expiry_s
        if wanted_s <= 0:
            raise CallError(f"a cordon of {wanted_s:g} s is none; give more than 0 seconds", node=node)
        kept = self.pruned(now=now, rules=rules)
        faults = (*kept.faults, Fault(node, now))
        others = tuple(out for out in kept.nodes if out.node != node)
        before = next((out for out in kept.nodes if out.node == node), None)
        at_most = rules.at_most(n_nodes)
        if before is None and len(others) + 1 > at_most:
            return Cordon(kept.nodes, faults), (
                f"{node} is not cordoned ({reason}): {len(others)} of {n_nodes} nodes are out already, and at most "
                f"{at_most} may be (a share of {rules.max_share:g}); see to those that are out, or allow a larger share"
            )
        lemon = sum(fault.node == node for fault in faults) >= rules.lemon_faults
        entry = Cordoned(node, reason, now, now + (max(wanted_s, rules.lemon_expiry_s) if lemon else wanted_s), lemon)
        if before is not None:
            entry = msgspec.structs.replace(
                entry,
                since_s=before.since_s,
                until_s=max(entry.until_s, before.until_s),
                lemon=lemon or before.lemon,
            )
        return Cordon((*others, entry), faults), None

    def is_cordoned(self, node: str, *, now: float) -> bool:
        """Whether ``node`` is out. A clock that was set back does not let it in early."""
        return any(out.node == node and now < out.until_s for out in self.nodes)

    def out(self, *, now: float) -> tuple[Cordoned, ...]:
        """The nodes that are out, with their reasons."""
        return tuple(out for out in self.nodes if now < out.until_s)

    def lifted(self, node: str) -> Cordon:
        """Let ``node`` in again and forget its faults: a person has seen to it."""
        return Cordon(
            tuple(out for out in self.nodes if out.node != node),
            tuple(fault for fault in self.faults if fault.node != node),
        )

    def pruned(self, *, now: float, rules: Rules = DEFAULT_RULES) -> Cordon:
        """Without what is over and what is too long ago."""
        return Cordon(self.out(now=now), tuple(fault for fault in self.faults if now - fault.at_s < rules.window_s))

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
