"""The deadlines of a checkpointer. Every wait has one; none is a tuning knob for speed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Deadlines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a wait is given up with an error that names what was missing."""

    agree_s: float = 300.0
    """for all ranks to meet in ``save`` (the first one) or ``restore``"""
    agent_s: float = 60.0
    """for the node's agent to start or to answer"""
    stage_s: float = 600.0
    """for a free segment, and for the copy to end"""
    commit_s: float = 1800.0
    """for a save to become durable"""
    stall_s: float = 240.0
    """for the store to get any further with what ``restore``, ``steps``, ``latest`` or the first ``save`` wait for"""
