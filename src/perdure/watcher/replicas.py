"""Numbers that should be equal, or finite, on all ranks: where a NaN began, and parameters that differ. Pure.

One all-reduce after a NaN it is on every rank, so only what a rank saw *before* the reduce names anybody, and of that
only the earliest step (`RankSample.local_bad_step`). A loss scaler lets single steps overflow by design, so nothing is
said until the numbers have been bad for more than one step.

| kind | what is seen |
|---|---|
| ``nan-source`` | gradients are not finite any more, and on few ranks it began earlier than on the others |
| ``nan-everywhere`` | gradients are not finite, and it began on most ranks at once |
| ``nan-unseen`` | the same, but nobody had looked at all gradients in the step before: where it began is not known |
| ``norm-far`` | the norm of one rank's own gradient is beyond any of its peers by orders of magnitude |
| ``replica-differs`` | after the same step, few replicas hold other parameters than most |
| ``replicas-differ`` | after the same step, replicas differ and no value is that of most |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perdure.watcher.evidence import Evidence
from perdure.watcher.samples import RankSample

__all__ = ["Replicas", "far_norms", "nan_source"]

_FAR = 1e4
_FEW = 4
"""One in so many ranks, or one rank, may be named."""
_PATIENCE_S, _LONG_PATIENCE_S = 2.0, 10.0
"""How long is waited for more replicas of a step; the second while some that told a checksum before have not."""
_SHOWN = 6


def nan_source(samples: Sequence[RankSample], now_s: float, *, n_ranks: int, over: bool = False) -> list[Evidence]:
    """Say where numbers that are not finite began; ``samples`` are the newest of all ranks.

    ``over`` says that the attempt has failed, so that there will be no second step to wait for.
    """
    bad = [each for each in samples if each.local_bad_step is not None]
    if not bad:
        return []
    first = min(each.local_bad_step for each in bad if each.local_bad_step is not None)
    lasting = any(each.step is not None and each.step > first + 1 for each in bad)
    if not lasting and not over:
        return []
    began = [each for each in bad if each.local_bad_step == first]
    raw = tuple(f"rank {each.rank}: own gradient bad since step {each.local_bad_step}" for each in bad[:_SHOWN])
    every = max((each.local_every or 1 for each in began), default=1)
    if len(began) > max(1, n_ranks // _FEW) and every > 1:
        text = (
            f"gradients are not finite, or far too large, since step {first}, on {len(began)} ranks at once; before it"
            f" the whole of them was looked at in each {every}th step only, so it may have begun on one rank"
        )
        return [Evidence(kind="nan-unseen", at_s=now_s, sentence=text, step=max(0, first - every), raw=raw)]
    if len(began) > max(1, n_ranks // _FEW):
        text = f"gradients are not finite, or far too large, since step {first}; it began on {len(began)} ranks at once"
        return [Evidence(kind="nan-everywhere", at_s=now_s, sentence=text, step=first, raw=raw)]
    ranks = tuple(sorted(each.rank for each in began))
    nodes = tuple(sorted({each.node for each in began}))
    names = ", ".join(str(rank) for rank in ranks)
    whose = f"the gradient of rank {names} on {', '.join(nodes)}"
    text = f"{whose} was not finite, or far too large, at step {first}, before it was reduced"
    return [Evidence(kind="nan-source", at_s=now_s, ranks=ranks, nodes=nodes, sentence=text, step=first, raw=raw)]


def far_norms(samples: Sequence[RankSample], now_s: float) -> list[Evidence]:
    """Say whose own gradient is larger by orders of magnitude than that of all who were seen at the same step."""
    with_norm = [s for s in samples if s.local_norm is not None and s.local_norm > 0 and s.step is not None]
    if len(with_norm) < _FEW:
        return []
    norms = np.array([s.local_norm for s in with_norm], np.float64)
    finite = np.isfinite(norms)
    if int(finite.sum()) < _FEW or float(norms[finite].max()) <= _FAR * float(np.median(norms[finite])):
        return []
    steps = np.array([s.step for s in with_norm], np.int64)
    found = []
    for step in np.unique(steps[finite & (norms > _FAR * float(np.median(norms[finite])))]):
        here = np.flatnonzero((steps == step) & finite)
        if len(here) < _FEW:
            continue
        far = [at for at in here.tolist() if norms[at] > _FAR * float(np.median(norms[here]))]
        if 0 < len(far) <= max(1, len(here) // _FEW):
            odd = [with_norm[at] for at in far]
            names = ", ".join(str(s.rank) for s in odd)
            found.append(
                Evidence(
                    kind="norm-far",
                    at_s=now_s,
                    ranks=tuple(sorted(s.rank for s in odd)),
                    nodes=tuple(sorted({s.node for s in odd})),
                    step=int(step),
                    sentence=f"at step {step} the gradient of rank {names} was beyond that of all its peers",
                    raw=tuple(f"rank {s.rank}: norm {s.local_norm:g}" for s in odd[:_SHOWN]),
                )
            )
    return found


class Replicas:
    """Compares checksums of parameters between the ranks that should hold the same. One an attempt."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], dict[int, RankSample]] = {}
        self._since: dict[tuple[str, int], float] = {}
        self._members: dict[str, set[int]] = {}
        self._told: dict[int, int] = {}
        self._accused: set[tuple[str, tuple[int, ...]]] = set()

    def feed(self, samples: Sequence[RankSample], now_s: float) -> list[Evidence]:
        """Take samples, of which most say nothing new; return what differs, each set of ranks once.

        A step is compared when all who ever told a checksum under that name have told theirs, or after a while.
        """
        for each in samples:
            step = each.checksum_step
            if step is None or not each.checksum or self._told.get(each.rank) == step:
                continue
            self._told[each.rank] = step
            self._members.setdefault(each.replicas, set()).add(each.rank)
            key = (each.replicas, step)
            self._seen.setdefault(key, {})[each.rank] = each
            self._since.setdefault(key, now_s)
        found: list[Evidence] = []
        for key, since_s in sorted(self._since.items()):
            patience_s = _PATIENCE_S if len(self._seen[key]) == len(self._members[key[0]]) else _LONG_PATIENCE_S
            if now_s - since_s >= patience_s:
                found += self._compared(key, now_s)
                del self._since[key], self._seen[key]
        return found

    def _compared(self, key: tuple[str, int], now_s: float) -> list[Evidence]:
        name, step = key
        here = self._seen[key]
        counts = Counter(each.checksum for each in here.values())
        if len(counts) < 2:
            return []
        usual, most = counts.most_common(1)[0]
        odd = tuple(sorted(rank for rank, each in here.items() if each.checksum != usual))
        raw = tuple(f"rank {rank}: {here[rank].checksum} after step {step}" for rank in sorted(here)[:_SHOWN])
        if most >= 2 and len(odd) <= max(1, len(here) // _FEW):
            if ("differs", odd) in self._accused:
                return []
            self._accused.add(("differs", odd))
            nodes = tuple(sorted({here[rank].node for rank in odd}))
            names = ", ".join(str(rank) for rank in odd)
            text = f"after step {step} the parameters of rank {names} are not those of {most} other replicas"
            raw = tuple(f"rank {r}: {here[r].checksum} after step {step}, others {usual}" for r in odd[:_SHOWN])
            return [
                Evidence(kind="replica-differs", at_s=now_s, ranks=odd, nodes=nodes, step=step, sentence=text, raw=raw)
            ]
        if (name, ()) in self._accused:
            return []
        self._accused.add((name, ()))
        text = f"after step {step} the {len(here)} replicas hold {len(counts)} different sets of parameters"
        return [Evidence(kind="replicas-differ", at_s=now_s, step=step, sentence=text, raw=raw)]
