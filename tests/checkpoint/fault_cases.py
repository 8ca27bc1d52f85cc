"""The kinds of cases of the fault campaign of several nodes, and which one has which number."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from conftest import HERE

STEPS, EVERY, MOMENT = 12, 3, 6  # the fault is at or after the save of step 6
ARGV = ("--steps", str(STEPS), "--every", str(EVERY), "--whole")
SILENT_S = 5
DEADLINES = (
    "--deadlines",
    json.dumps(
        {"agree_s": 60, "agent_s": 20, "stage_s": 30, "commit_s": 30, "stall_s": 30, "silent_s": SILENT_S},
    ),
)
SCRIPT = str(HERE / "gated_trainer.py")
LONG_S = 90.0

PHASES = ("idle", "forward", "copy", "drain", "part", "commit", "partner", "restore")
STORE = {
    "drain": {"verb": "put", "match": "packs/*000000000006-*"},
    "part": {"verb": "create", "match": "parts/*000000000006-*"},
    "commit": {"verb": "create", "match": "slots/*", "nth": 2},
}
SEALED = ("idle", "drain", "part", "commit", "partner", "restore")  # before that nobody knows what the bytes should be
FAULTS: dict[str, tuple[str, ...]] = {
    "kill rank": PHASES,
    "kill agent": PHASES,
    "kill node": PHASES,
    "kill two nodes": PHASES,
    "cut link": PHASES,
    "silent link": PHASES,
    "slow link": PHASES,
    "stop rank": PHASES,
    "stop agent": PHASES,
    "freeze agent": PHASES,
    "freeze node": PHASES,
    "clock jump": PHASES,
    "corrupt memory": SEALED,
    "corrupt copy": ("idle", "drain", "part", "commit", "restore"),
    "full disk": tuple(STORE),
    "EIO": tuple(STORE),
    "no memory": ("idle", "copy"),
    "no memory for a copy": ("partner",),
}
LIVED_THROUGH = {
    "kill agent", "cut link", "silent link", "slow link", "stop rank", "stop agent", "freeze agent", "clock jump",
    "full disk", "EIO", "no memory",
}  # fmt: skip
DAY_S = 86400.0
OUTCOMES = ("exactly", "an older step, told", "an older step, of which no rank had been told more")


@dataclass(frozen=True, slots=True)
class Case:
    """One case; all else follows from ``seed``."""

    fault: str
    phase: str
    new_mesh: bool
    seed: int

    def __str__(self) -> str:
        return f"{self.fault}, {self.phase}, {'another mesh' if self.new_mesh else 'the same mesh'}, seed {self.seed}"


def all_cases() -> list[tuple[str, str, bool]]:
    return [(fault, phase, new) for fault, phases in FAULTS.items() for phase in phases for new in (False, True)]


def draw(number: int) -> Case:
    """The case of that number: all kinds in a shuffled order, then all again under other seeds."""
    kinds = all_cases()
    turn, place = divmod(number, len(kinds))
    random.Random(turn).shuffle(kinds)
    return Case(*kinds[place], seed=number)
