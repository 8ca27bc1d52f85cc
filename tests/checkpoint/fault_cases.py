"""The kinds of cases of the fault campaign of several nodes, and which one has which number."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from conftest import HERE

STEPS, EVERY, MOMENT = 12, 3, 6  # the fault is at or after the save of step 6
ARGV = ("--steps", str(STEPS), "--every", str(EVERY), "--whole", "--lr", "1e-5")  # so small that deltas are worth it
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


CODINGS = ("raw", "lossless", "auto")
REMOTES = ("no remote", "remote", "remote struck", "home lost")  # struck: the moment of the fault is in the carry to it
MODELS = ("shards", "stages")


@dataclass(frozen=True, slots=True)
class Case:
    """One case; all else follows from ``seed``."""

    fault: str
    phase: str
    new_mesh: bool
    seed: int
    coding: str = "raw"
    remote: str = "no remote"
    model: str = "shards"

    def __str__(self) -> str:
        mesh = "another mesh" if self.new_mesh else "the same mesh"
        return f"{self.fault}, {self.phase}, {mesh}, {self.coding}, {self.remote}, {self.model}, seed {self.seed}"


def all_cases() -> list[tuple[str, str, bool]]:
    return [(fault, phase, new) for fault, phases in FAULTS.items() for phase in phases for new in (False, True)]


def draw(number: int) -> Case:
    """The case of that number: all kinds in a shuffled order, then all again under other seeds.

    Each with a coding, a remote tier or none, and a way to cut the model, which follow from the number.
    """
    kinds = all_cases()
    turn, place = divmod(number, len(kinds))
    random.Random(turn).shuffle(kinds)
    fault, phase, new_mesh = kinds[place]
    dice = random.Random(f"how {number}")
    remotes = [each for each in REMOTES if each != "remote struck" or phase in STORE]
    return Case(fault, phase, new_mesh, number, dice.choice(CODINGS), dice.choice(remotes), dice.choice(MODELS))
