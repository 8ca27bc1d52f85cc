"""What each rank of this node is doing now, in a page of shared memory; and the step at which all of them stop."""

from perdure.progress.lateness import Allowance, Late, Lateness, phase_deadlines
from perdure.progress.page import MAX_LOCAL_RANKS, Page, Phase, Record, Snapshot
from perdure.progress.stop import MARGIN_STEPS, StopAgreement, look

__all__ = [
    "MARGIN_STEPS",
    "MAX_LOCAL_RANKS",
    "Allowance",
    "Late",
    "Lateness",
    "Page",
    "Phase",
    "Record",
    "Snapshot",
    "StopAgreement",
    "look",
    "phase_deadlines",
]
