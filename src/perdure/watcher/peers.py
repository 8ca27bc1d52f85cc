"""Slow ranks and slow nodes: ranks that do equal work are compared with each other.

In synchronous training every rank's step takes as long as the slowest one's, so only a rank's *own compute time* c
says who is slow. Of a group that does equal work, in each step,

    x_r = log(c_r / q) - b_r        q: the lower quartile of the group (of up to four ranks: their minimum)
                                    b_r: what log(c_r / q) usually is for this rank

is noise around 0 while rank r is as it was. Whatever slows all of them alike (longer inputs, evaluation) is in q and
cancels. q is a low quantile, no median, so that half of the ranks may be slow: a whole node of a job of two.

**Against its own past.** Is x_r around 0 or around ``least`` = 0.05? Page's CUSUM of the log-likelihood ratio decides:
S = max(0, S + (d / s^2) (x - d / 2)), d = log(1.05), s the noise of x. Wald's bound: noise alone carries S over A at
most with rate exp(-A) a sample, so A = log(ranks * 1e8) is under one false alarm in 1e8 steps of the job, were the
noise Gaussian. It is not: x is clipped at 2 d, s is taken a quarter larger than measured and at least 0.8 %, and 5 of
the last 8 steps must lie over d / 2, so that no step or two, however slow, accuse anybody. Where neighbouring steps
are alike (lag-one correlation a over all ranks), sums spread wider by sqrt((1 + a) / (1 - a)), and so does s.

**Against its peers.** A rank that was slow from the start has no better past, and one that creeps takes its past
along. So the b_r are compared as well, after 8 and 16 steps and then each 64: a rank stands out if b_r is 0.04 over
the median and over ``q_n`` robust deviations of the b, q_n being the Gaussian quantile of one false alarm in 1e4
comparisons of n ranks. A fleet in which ranks always differ by 1 % thus accuses nobody.

An accused rank keeps its b_r, is told once, and is over when the CUSUM run the other way passes A. If more than half
of a group stands out, the group has changed and no rank: nobody is named and all learn anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence

__all__ = ["Peers"]

Floats = NDArray[np.float64]

_LEARN = 16
"Steps until a rank has a past; after half of them levels are compared for the first time."
_RECENT = 8
_OVER = 5
"Of the recent steps so many must be slow. By chance, at noise that is half of the shift: 1 in 600, beside the CUSUM."
_MEMORY = 2000
"Steps over which b_r follows a rank that is not accused."
_NOISE_MEMORY = 100
_LEVELS = 64
"Steps between two comparisons of levels."
_NOISE_LEAST = 0.008
_NOISE_MARGIN = 1.25
_PAIR_MEMORY = 300
_ALIKE_LEAST = 0.1
"So much correlation is there already because b_r is not known better."
_JOB_STEPS = 1e8
_LEVEL_RATE = 1e-4


class Peers:
    """Finds the ranks of a group of equals that have become slow; O(ranks) time a step, O(ranks) memory.

    ``ranks`` do equal work (one pipeline stage, one data-parallel role) and ``nodes`` says for each where it runs; make
    one `Peers` a group. ``least`` is the smallest slowdown that is to be found, as a share.

    >>> peers = Peers(range(8), ["a"] * 4 + ["b"] * 4)
    >>> noise = np.random.default_rng(0).normal(1, 0.01, (60, 8))
    >>> noise[40:, 6] *= 1.1
    >>> found = [e for step, row in enumerate(noise) for e in peers.observe(step, row, at_s=float(step))]
    >>> [(e.kind, e.ranks, e.nodes, e.step) for e in found]
    [('slow_rank', (6,), ('b',), 44)]
    """

    def __init__(self, ranks: Sequence[int], nodes: Sequence[str], *, least: float = 0.05) -> None:
        if len(ranks) != len(nodes):
            raise CallError(f"{len(ranks)} ranks and {len(nodes)} nodes: give each rank's node")
        if not 0 < least < 1:
            raise CallError(f"least={least}: give the smallest slowdown to be found as a share, as 0.05")
        self.ranks = tuple(ranks)
        self.nodes = tuple(nodes)
        self._shift = math.log1p(least)
        size = len(self.ranks)
        names = sorted(set(self.nodes))
        number = {name: i for i, name in enumerate(names)}
        self._node_of = np.array([number[node] for node in self.nodes], dtype=np.int64)
        self._node_names = names
        self._limit = math.log(max(size, 1) * _JOB_STEPS)
        self._deviations = NormalDist().inv_cdf(1 - _LEVEL_RATE / max(size, 1))
        self.reset()

    def reset(self) -> None:
        """Forget every past: after a restart ranks may run elsewhere."""
        size = len(self.ranks)
        self._first = np.full((_LEARN, size), np.nan)
        self._first_own = np.full((_LEARN, size), np.nan)
        self._seen = np.zeros(size, dtype=np.int64)
        self._usual = np.zeros(size)
        self._own = np.zeros(size)
        self._noise = np.full(size, _NOISE_LEAST)
        self._rise = np.zeros(size)
        self._fall = np.zeros(size)
        self._recent = np.zeros((_RECENT, size), dtype=bool)
        self._recent_own = np.full((_RECENT, size), np.nan)
        self._over = np.zeros(size, dtype=np.int64)
        self._mean = np.zeros(size)
        self._accused = np.zeros(size, dtype=bool)
        self._row = 0
        self._last = np.zeros(size)
        self._counted = 0
        self._product = 0.0
        self._square = 0.0

    @property
    def accused(self) -> tuple[int, ...]:
        """The ranks that are slow now."""
        return tuple(self.ranks[i] for i in np.flatnonzero(self._accused))

    def observe(self, step: int, compute_s: ArrayLike, *, at_s: float) -> tuple[Evidence, ...]:
        """Take each rank's own compute time of one step, in seconds, in the order of ``ranks``; say what is new.

        What is not known of a rank is NaN; times that are not positive and finite count as such. Steps may be missing.
        """
        times = np.asarray(compute_s, dtype=np.float64)
        if times.shape != (len(self.ranks),):
            raise CallError(f"times of shape {times.shape} for {len(self.ranks)} ranks: give one a rank")
        known = np.isfinite(times) & (times > 0)
        count = int(known.sum())
        if count < 2:
            return ()
        logs = np.log(np.where(known, times, 1.0))
        present = logs if count == len(logs) else logs[known]
        at = (count - 1) // 4
        excess = logs - np.partition(present, at)[at]
        self._row += 1
        compare = self._learn(excess, logs, known)
        fresh = self._sift(excess, logs, known) | compare
        ended = self._accused & known & (self._fall > self._limit) & (self._over <= _RECENT - _OVER)
        if ended.any():
            self._accused &= ~ended
            self._rise[ended] = self._fall[ended] = 0.0
        fresh &= ~self._accused
        found: list[Evidence] = self._ends(ended, step, at_s) if ended.any() else []
        if fresh.any():
            found += self._accuse(fresh, known, step, at_s)
        return tuple(found)

    def _learn(self, excess: Floats, logs: Floats, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Give new ranks a past; the ranks whose level stands out."""
        new = known & (self._seen < _LEARN)
        self._seen += known
        compare = self._row % _LEVELS == 0
        if new.any():
            columns = np.flatnonzero(new)
            rows = self._seen[columns] - 1
            self._first[rows, columns] = excess[columns]
            self._first_own[rows, columns] = logs[columns]
            half = (self._seen[columns] == _LEARN // 2) | (self._seen[columns] == _LEARN)
            due = columns[half & ~self._accused[columns]]
            if len(due):
                first = self._first[:, due]
                self._usual[due] = np.nanmedian(first, axis=0)
                self._own[due] = np.nanmedian(self._first_own[:, due], axis=0)
                spread = 1.4826 * np.nanmedian(np.abs(first - self._usual[due]), axis=0)
                self._noise[due] = np.maximum(spread, _NOISE_LEAST)
                compare = True
        if not compare:
            return np.zeros(len(self.ranks), dtype=bool)
        return self._levels()

    def _levels(self) -> NDArray[np.bool_]:
        """The ranks whose usual excess stands out from the others'; from now on theirs is the others'."""
        judged = (self._seen >= _LEARN // 2) & ~self._accused
        out = np.zeros(len(self.ranks), dtype=bool)
        if judged.sum() < 2:
            return out
        levels = self._usual[judged]
        middle = float(np.median(levels)) if len(levels) > 3 else float(levels.min())
        noise = float(np.median(self._noise[judged]))
        averaged = noise / math.sqrt(max(1, min(_MEMORY, int(self._seen[judged].min())) / 1.6))
        spread = max(1.4826 * float(np.median(np.abs(levels - middle))), averaged, 0.0075)
        if len(levels) <= 3:
            spread = max(averaged * 1.5, 0.0075)
        bound = middle + max(0.8 * self._shift, min(self._deviations, 6.0) * spread)
        out[judged] = levels > bound
        if out.any():
            if 2 * int(out.sum()) > int(judged.sum()):
                return np.zeros_like(out)
            self._mean[out] = self._usual[out] - middle
            self._usual[out] = middle
            self._rise[out] = self._limit
        return out

    def _sift(self, excess: Floats, logs: Floats, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Carry the sums on; the ranks that have left their past."""
        shift = self._shift
        ready = known & (self._seen > _LEARN)
        x = np.where(ready, excess - self._usual, 0.0)
        noise = _NOISE_MARGIN * np.maximum(self._noise, float(np.median(self._noise))) * self._memory_factor()
        gain = np.where(ready, shift / noise**2 * (np.clip(x, -shift, 2 * shift) - shift / 2), 0.0)
        self._rise = np.clip(self._rise + gain, 0.0, 2 * self._limit)
        self._fall = np.clip(self._fall - gain, 0.0, 2 * self._limit) * self._accused
        slot = self._row % _RECENT
        slow = np.where(ready, x > shift / 2, self._recent[slot])
        self._over += slow.astype(np.int64) - self._recent[slot]
        self._recent[slot] = slow
        rise = np.where(slow & ready, x, self._mean)
        self._mean += np.where(ready, (np.minimum(rise, 1.0) - self._mean) / _OVER, 0.0)
        calm = ready & ~self._accused & (self._over < _OVER)
        weight = np.where(calm, 1.0 / np.clip(self._seen, 1, _MEMORY), 0.0)
        clipped = np.clip(x, -3 * noise, 3 * noise)
        self._correlate(np.where(calm, clipped, 0.0))
        self._usual += weight * clipped
        size = np.minimum(1.2533 * np.abs(x), 4 * noise)
        self._noise += np.where(calm, (np.maximum(size, 0.0) - self._noise) / _NOISE_MEMORY, 0.0)
        np.maximum(self._noise, _NOISE_LEAST, out=self._noise)
        fresh: NDArray[np.bool_] = ready & ~self._accused & (self._rise > self._limit) & (self._over >= _OVER)
        if len(self.ranks) == 2:
            fresh = self._grew(fresh, logs, known, calm)
        return fresh

    def _correlate(self, x: Floats) -> None:
        """Take part of one step in how alike neighbouring steps are, over all ranks; 0 for ranks that take no part."""
        both = (x != 0) & (self._last != 0)
        if both.any():
            self._counted += 1
            weight = 1.0 / min(self._counted, _PAIR_MEMORY)
            self._product += weight * (float(np.mean((x * self._last)[both])) - self._product)
            self._square += weight * (float(np.mean((x**2)[both])) - self._square)
        self._last = x

    def _memory_factor(self) -> float:
        """By how much sums of the noise spread wider than if its steps knew nothing of each other."""
        if self._square <= 0:
            return 1.0
        alike = min(max(self._product / self._square - _ALIKE_LEAST, 0.0), 0.9)
        return math.sqrt((1 + alike) / (1 - alike))

    def _grew(
        self, fresh: NDArray[np.bool_], logs: Floats, known: NDArray[np.bool_], calm: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Of two ranks, those of ``fresh`` whose own time has grown: one that got faster does not accuse the other."""
        self._recent_own[self._row % _RECENT] = np.where(known, logs - self._own, np.nan)
        follow = calm & (self._over == 0)
        self._own += np.where(follow, np.clip(logs - self._own, -0.1, 0.1) / 200, 0.0)
        if not fresh.any():
            return fresh
        grown = np.zeros_like(fresh)
        grown[fresh] = np.nanmedian(self._recent_own[:, fresh], axis=0) > self._shift / 4
        return grown

    def _accuse(self, fresh: NDArray[np.bool_], known: NDArray[np.bool_], step: int, at_s: float) -> list[Evidence]:
        standing = fresh | self._accused
        if 2 * int((standing & known).sum()) > int(known.sum()):
            # The group has changed: what was usual is not any more.
            self.reset()
            return []
        on_nodes = np.isin(self._node_of, self._node_of[fresh])
        # Of a slow node all ranks cross within a few steps of each other: those that are half way are of the incident.
        joined = on_nodes & known & ~self._accused & (self._rise > self._limit / 2) & (self._over >= _OVER - 2)
        if 2 * int(((standing | joined) & known).sum()) <= int(known.sum()):
            fresh = fresh | joined
        self._accused |= fresh
        self._fall[fresh] = 0.0
        found = []
        for node in np.unique(self._node_of[fresh]):
            here = np.flatnonzero(self._accused & (self._node_of == node))
            found.append(self._evidence(here, self._node_names[int(node)], step, at_s))
        return found

    def _evidence(self, here: NDArray[np.int64], node: str, step: int, at_s: float) -> Evidence:
        excess = float(np.median(self._mean[here]))
        ratio = math.exp(excess)
        ranks = tuple(self.ranks[i] for i in here)
        whole = len(ranks) > 1
        who = (
            f"ranks {', '.join(map(str, ranks))} on {node} compute" if whole else f"rank {ranks[0]} on {node} computes"
        )
        return Evidence(
            kind="slow_node" if whole else "slow_rank",
            at_s=at_s,
            sentence=f"{who} {ratio:.2f} times as long as those that do the same work",
            ranks=ranks,
            nodes=(node,),
            strength=max(0.0, min(1.0, excess / (excess + self._shift))) if excess > 0 else 0.0,
            step=step,
            raw=tuple(f"rank {self.ranks[i]}: {math.exp(float(self._mean[i])):.3f}" for i in here[:16]),
        )

    def _ends(self, ended: NDArray[np.bool_], step: int, at_s: float) -> list[Evidence]:
        """One end a node, when none of its ranks is slow any more."""
        found = []
        for node in np.unique(self._node_of[ended]):
            if not (self._accused & (self._node_of == node)).any():
                here = tuple(self.ranks[i] for i in np.flatnonzero(ended & (self._node_of == node)))
                name = self._node_names[int(node)]
                sentence = f"the ranks on {name} compute as fast as their peers again"
                found.append(
                    Evidence(kind="slow_rank_over", at_s=at_s, sentence=sentence, ranks=here, nodes=(name,), step=step)
                )
        return found
