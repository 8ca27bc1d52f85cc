"""The deadlines of a checkpointer. Every wait has one; none is a tuning knob for speed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from perdure.errors import CallError

__all__ = ["BEAT_S", "Deadlines"]

BEAT_S = 0.5
"""how often an agent says that it is alive, to its ranks and to other nodes' agents"""
_LEAST_SILENT_S = 4 * BEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a wait is given up with an error that names what was missing."""

    agree_s: float = 300.0
    """for all ranks to meet in ``save`` (the first one) or ``restore``"""
    agent_s: float = 60.0
    """for the node's agent to start or to answer"""
    silent_s: float = 8.0
    """that an agent may show no sign of life (one comes twice a second) before its node's ranks, and the agents of
    other nodes, go on without it; its own ranks end it then, so that it can do nothing late"""
    stage_s: float = 600.0
    """for a free segment, and for the copy to end"""
    commit_s: float = 1800.0
    """for a save to become durable"""
    stall_s: float = 240.0
    """for the store to get any further with what ``restore``, ``steps``, ``latest`` or the first ``save`` wait for"""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise CallError(f"Deadlines.{field.name} is {value!r}; give a number of seconds above 0")
        if self.silent_s < _LEAST_SILENT_S:
            raise CallError(f"Deadlines.silent_s is {self.silent_s:g}; give {_LEAST_SILENT_S:g} seconds or more")
