"""How long a rank may stand still before it is suspected, and before something is done: by phase, learned.

**Suspected**: among steps, after five times the gap that 99 in 100 gaps of this job stay below, at least
``suspect_s``; in a phase of its own (a save, an evaluation, a restore) after three times the longest that was seen, at
least ``own_phase_s``; in the first steps, which compile and connect, after ``first_step_s``. A suspicion that passed by
itself teaches: the next takes longer.

**Acted on**: after the deadline of the phase, as the house has it (`perdure.progress.lateness`): what the rank gave
itself, else what the user said, else the largest of a default and ten times the longest that was seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perdure.progress import Allowance, Phase
from perdure.progress.lateness import DEFAULTS
from perdure.watcher.columns import Columns, Floats, Mask
from perdure.watcher.liveness import SILENT_S

__all__ = ["Patience"]

_GAPS = 5.0
_OWN = 3.0
_LONGEST = 10.0
_ENOUGH_GAPS = 12
_UNLEARNED_S = 15.0
_EDGES: Floats = np.geomspace(0.25, 4096.0, 57)
_AGAIN = 1.25
_AGED = 0.999
_QUIET_S = 2.5


class Patience:
    """Thresholds of one attempt. ``overrides`` are the user's (`perdure.progress.phase_deadlines`)."""

    def __init__(
        self, overrides: Mapping[Phase, Allowance], *, suspect_s: float, own_phase_s: float, first_step_s: float
    ) -> None:
        self._overrides = dict(overrides)
        self._suspect_s, self._own_phase_s, self._first_step_s = suspect_s, own_phase_s, first_step_s
        self._gaps: Floats = np.zeros(len(_EDGES) + 1)
        self._longest: Floats = np.zeros(max(Phase) + 1)
        self._forgiven_s = 0.0

    def learn(self, columns: Columns, *, most_s: float) -> None:
        """Take from the last look which gaps have ended; ``most_s`` ago a rank was busy, for which others waited."""
        in_steps = columns.in_steps
        gaps = columns.gap_ended_s[in_steps]
        gaps = np.minimum(gaps[~np.isnan(gaps)], most_s)
        if len(gaps):
            self._gaps *= _AGED
            self._gaps += np.bincount(np.searchsorted(_EDGES, gaps), minlength=len(self._gaps))
        ended = ~np.isnan(columns.own_phase_ended_s)
        if ended.any():
            own = ended & (columns.phase_before != Phase.FORWARD) & (columns.phase_before != Phase.STEP)
            np.maximum.at(self._longest, columns.phase_before[own], columns.own_phase_ended_s[own])

    def forgive(self, seconds: float) -> None:
        """A suspicion has passed by itself after ``seconds``."""
        self._forgiven_s = max(self._forgiven_s, seconds)

    @property
    def gap_s(self) -> float:
        """The gap that 99 in 100 stay below; what is assumed until enough were seen."""
        total = float(self._gaps.sum())
        if total < _ENOUGH_GAPS:
            return _UNLEARNED_S / _GAPS
        at = int(np.searchsorted(np.cumsum(self._gaps), 0.99 * total))
        return float(_EDGES[min(at, len(_EDGES) - 1)])

    @property
    def among_steps_s(self) -> float:
        """After how long a rank among its later steps is suspected."""
        return max(self._suspect_s, _GAPS * self.gap_s, _AGAIN * self._forgiven_s)

    def suspect_s(self, columns: Columns) -> Floats:
        """After how long each rank is suspected."""
        own = np.maximum(self._own_phase_s, _OWN * self._longest[columns.phase])
        later: Floats = np.where(columns.in_steps, self.among_steps_s, own)
        first = np.where(columns.in_steps, self._first_step_s, np.maximum(self._own_phase_s, self._first_step_s))
        patient: Floats = np.where(columns.at_first, first, later)
        return np.minimum(patient, self.allowed_s(columns))

    def allowed_s(self, columns: Columns) -> Floats:
        """After how long something is done about each rank."""
        first = np.zeros(max(Phase) + 1)
        later = np.full(max(Phase) + 1, np.inf)
        first[:] = np.inf
        for phase, usual in DEFAULTS.items():
            said = self._overrides.get(phase)
            first[phase] = said.first_s if said is not None else max(usual.first_s, _LONGEST * self._longest[phase])
            later[phase] = said.floor_s if said is not None else max(usual.floor_s, _LONGEST * self._longest[phase])
        usual_s = np.where(columns.at_first, first[columns.phase], later[columns.phase])
        # What a rank gives itself counts from the beginning of its phase, which is before it stood still.
        own = columns.allowed_s - (columns.phase_s - columns.still_s)
        allowed: Floats = np.where(np.isnan(columns.allowed_s), usual_s, np.maximum(own, 0.0))
        return allowed

    def busy(self, columns: Columns, limit_s: Floats, now_s: float) -> bool:
        """Whether a rank does something of its own, within ``limit_s``, for which the others may wait."""
        own = ~columns.in_steps & (columns.phase != Phase.FINISHED)
        # What a dumb rank wrote last is not what it does, and who waits does nothing of its own.
        own &= (columns.waits != 1) | (columns.calls_still_s < _QUIET_S)
        at_work = columns.alive(now_s) & ~columns.stopped & (columns.beat_still_s < SILENT_S)
        of_its_own: Mask = at_work & own & (columns.still_s <= limit_s)
        return bool(of_its_own.any())
