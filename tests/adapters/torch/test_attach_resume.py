"""What a launcher tells `attach`: that it must go on, that it rolls back, which batches are left out; and that the loop
then is the loop that never drew them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perdure.adapters.torch.attach import attach
from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.run import Run
from perdure.errors import BlobMissing, CallError, NeedsPerson
from perdure.events import read_log

from . import gloo
from .conftest import SHORT

pytestmark = pytest.mark.usefixtures("unhooked")

SAMPLES = 24


class Numbers(Dataset[torch.Tensor]):
    """Samples that say which they are, and one that cannot be loaded."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == self.bad:
            raise ValueError(f"sample {i} is broken")
        return torch.tensor([float(i)])


class Loop:
    """A loop of one weight that notes which samples led to each step."""

    def __init__(self, place: Any, *, every: int = 2, batch: int = 2, accumulate: int = 1, workers: int = 0,
                 bad: int | None = None, shuffle: bool = False, loader: Any = None, **more: Any) -> None:  # fmt: skip
        torch.manual_seed(7)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.accumulate = accumulate
        self.loader = loader or DataLoader(Numbers(bad), batch_size=batch, num_workers=workers, shuffle=shuffle)
        self.seen: dict[int, list[int]] = {}
        self.run: Run = attach(
            self.model,
            self.optimizer,
            to=place,
            every=every,
            loader=self.loader,
            agent=False,
            deadlines=SHORT,
            **more,
        )

    def go(self, steps: int) -> Loop:
        """Train up to ``steps``."""
        drawn: list[int] = []
        micro = 0
        while self.run.step < steps:
            for x in self.loader:
                self.model(x).square().mean().backward()
                drawn += [int(each) for each in x.flatten()]
                micro += 1
                if micro % self.accumulate:
                    continue
                for weight in self.model.parameters() if dist.is_initialized() else ():
                    assert weight.grad is not None
                    dist.all_reduce(weight.grad)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.seen[self.run.step] = drawn
                drawn = []
                if self.run.step == steps:
                    break
        return self

    def end(self) -> Loop:
        """A clean exit."""
        self.run.close()
        return self

    def weight(self) -> list[float]:
        """The state that tells two histories apart."""
        return [*self.model.weight.flatten().tolist(), *self.model.bias.tolist()]


def committed(place: Any) -> list[int]:
    """The steps of the branch that training is on."""
    ckpt = Checkpointer(place, agent=False, deadlines=SHORT)
    try:
        return ckpt.steps()
    finally:
        ckpt.close()


# --- must -------------------------------------------------------------------------------------------------------------


def test_a_run_that_must_go_on_does_not_begin_from_scratch(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RESUME", "must")
    with pytest.raises(NeedsPerson, match=f"no step to restore at {ram_url}.*never to begin from scratch"):
        Loop(ram_url)
    monkeypatch.delenv("PERDURE_RESUME")
    Loop(ram_url).go(4).end()
    monkeypatch.setenv("PERDURE_RESUME", "must")
    assert Loop(ram_url).run.step == 4


SCRIPT = """
import sys, torch, perdure
model = torch.nn.Linear(1, 1)
run = perdure.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), to=sys.argv[1], every=1, agent=False)
print("trains")
"""


def test_the_script_ends_with_73_before_it_trains(tmp_path: Path) -> None:
    env = {**os.environ, "PERDURE_RESUME": "must"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")], env=env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (73, "")
    assert f"there is no step to restore at {tmp_path / 'run'}" in done.stderr


# --- roll-back --------------------------------------------------------------------------------------------------------


def test_a_roll_back_restores_the_newest_step_below_and_goes_on_from_there(
    ram_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Loop(f"{ram_url}-whole").go(9)
    Loop(ram_url).go(8).end()
    assert committed(ram_url) == [2, 4, 6, 8]
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "6")
    back = Loop(ram_url)
    assert back.run.step == 4
    assert back.go(9).end().weight() == whole.weight()
    assert {step: back.seen[step] for step in range(5, 10)} == {step: whole.seen[step] for step in range(5, 10)}
    monkeypatch.delenv("PERDURE_RESTORE_BEFORE")
    assert committed(ram_url) == [2, 4, 6, 8, 9]
    assert Loop(ram_url).run.step == 9


def test_what_was_rolled_back_stays_in_the_store_and_is_no_longer_the_newest(
    ram_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Loop(ram_url).go(8).end()
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "5")
    Loop(ram_url, every=100).go(5).end()
    monkeypatch.delenv("PERDURE_RESTORE_BEFORE")
    assert committed(ram_url) == [2, 4, 5]
    again = Loop(ram_url)
    assert again.run.step == 5
    again.run._failed = True
    ckpt = again.run.checkpointer
    assert ckpt.restore(again.run._tree, slot=4) == 8


def test_a_damaged_step_is_passed_over_by_a_roll_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "run"
    Loop(place).go(8).end()
    (pack,) = place.glob("packs/*/000000000006-*")
    damaged = bytearray(pack.read_bytes())
    damaged[-8:] = bytes(8) if damaged[-8:] != bytes(8) else b"\xff" * 8
    pack.chmod(0o600)
    pack.write_bytes(damaged)
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "8")
    assert Loop(place).run.step == 4


def test_a_roll_back_to_nothing_needs_a_person(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "2")
    with pytest.raises(NeedsPerson, match="there is no step at all"):
        Loop(ram_url)
    monkeypatch.delenv("PERDURE_RESTORE_BEFORE")
    Loop(ram_url).go(4).end()
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "2")
    with pytest.raises(NeedsPerson, match=f"no step below 2 to roll back to at {ram_url}: its oldest step is 2"):
        Loop(ram_url)


def test_a_script_that_asks_for_a_step_may_not_undo_a_roll_back(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Loop(ram_url).go(6).end()
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "5")
    assert Loop(ram_url, step=2).run.step == 2
    with pytest.raises(BlobMissing):
        Loop(ram_url, step=3)
    with pytest.raises(CallError, match="asks for step 6, but the launcher rolls back"):
        Loop(ram_url, step=6)


# --- batches left out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_batches_of_a_range_are_left_out_and_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int, workers: int
) -> None:
    """Steps 4 to 5 of 2 samples (or 4), over the end of an epoch where gradients are accumulated."""
    each = 2 * accumulate
    first = Loop(tmp_path / "run", accumulate=accumulate, workers=workers).go(5).end()
    assert first.seen[4] == list(range(3 * each, 4 * each))
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "4")
    monkeypatch.setenv("PERDURE_SKIP", "4:5")
    bad = 3 * each
    back = Loop(tmp_path / "run", accumulate=accumulate, workers=workers, bad=bad if workers == 0 else None)
    assert back.run.step == 2
    back.go(5).end()
    assert back.seen[3] == first.seen[3]
    assert back.seen[4] == [i % SAMPLES for i in range(5 * each, 6 * each)]
    monkeypatch.delenv("PERDURE_RESTORE_BEFORE")
    after = Loop(tmp_path / "run", accumulate=accumulate, workers=workers)
    assert after.run.step == 5
    after.go(6)
    assert after.seen[6] == [i % SAMPLES for i in range(7 * each, 8 * each)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_restored_right_before_the_range_the_position_says_how_many_batches_lead_to_a_step(
    ram_url: str, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    Loop(ram_url, accumulate=accumulate, shuffle=True).go(3).end()
    whole = Loop(f"{ram_url}-whole", accumulate=accumulate, shuffle=True).go(9)
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "3")
    monkeypatch.setenv("PERDURE_SKIP", "3:4")
    back = Loop(ram_url, accumulate=accumulate, shuffle=True).go(6)
    assert back.seen == {step: whole.seen[step + 2] for step in (3, 4, 5, 6)}


@pytest.mark.parametrize("last", [6, 12])
def test_a_range_may_go_over_the_end_of_epochs(ram_url: str, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Four steps an epoch, the range begins in the middle of the first."""
    whole = Loop(f"{ram_url}-whole", accumulate=3, shuffle=True).go(5 + last)
    monkeypatch.setenv("PERDURE_SKIP", f"3:{last}")
    loop = Loop(ram_url, accumulate=3, shuffle=True).go(6)
    n = last - 2
    assert loop.seen == {step: whole.seen[step if step < 3 else step + n] for step in range(1, 7)}


def test_ranges_follow_one_another_and_those_of_one_step_add_up(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SKIP", "4:4,3:4,3:3")
    loop = Loop(ram_url).go(6)
    assert {step: batch[0] // 2 for step, batch in loop.seen.items()} == {1: 0, 2: 1, 3: 5, 4: 7, 5: 8, 6: 9}
    loop.end()
    again = Loop(ram_url).go(7)
    assert again.seen == {7: [20, 21]}


def test_a_restore_after_a_range_leaves_nothing_out_again(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SKIP", "3:4")
    Loop(ram_url).go(4).end()
    monkeypatch.setenv("PERDURE_SKIP", "3:4,5:5")
    assert Loop(ram_url).go(5).seen == {5: [14, 15]}  # right before its range, behind another one


def test_what_cannot_be_left_out_is_said(ram_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SKIP", "3:4")

    class Own:
        """A loader with a position of its own."""

        def __iter__(self) -> Any:
            return iter(())

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    with pytest.raises(CallError, match="the position of a Own is its own"):
        Loop(f"{ram_url}-own", loader=Own())
    model = nn.Linear(1, 1)
    with pytest.raises(CallError, match="there is no loader; give attach a plain DataLoader"):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1), to=f"{ram_url}-none", every=1, agent=False)
    monkeypatch.setenv("PERDURE_SKIP", "1:1")
    with pytest.raises(CallError, match="the batches of the first step"):
        Loop(f"{ram_url}-first").go(2)


def test_a_script_that_could_not_leave_out_a_batch_is_refused_before_it_trains(
    ram_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_MAY_SKIP", "1")
    assert Loop(ram_url).go(2).end().run.step == 2
    model = nn.Linear(1, 1)
    with pytest.raises(CallError, match=r"--skip-bad-batch.*there is no loader; give attach a plain DataLoader"):
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1), to=f"{ram_url}-none", every=1, agent=False)


def test_the_log_says_what_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SKIP", "3:4")
    monkeypatch.setenv("PERDURE_EVENTS", str(tmp_path / "events"))
    Loop(tmp_path / "run").go(4)
    said = [getattr(entry.fact, "text", "") for entry in read_log(tmp_path / "events")]
    assert "after step 2 the next 2 batches are left out, as the launcher said" in said


# --- two ranks --------------------------------------------------------------------------------------------------------


def test_two_ranks_roll_back_and_leave_out_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "run"

    def train() -> dict[int, list[int]]:
        return Loop(place).go(5).end().seen

    first = gloo.run(2, train)
    assert first[1][4] == [14, 15]
    monkeypatch.setenv("PERDURE_RESUME", "must")
    monkeypatch.setenv("PERDURE_RESTORE_BEFORE", "5")
    monkeypatch.setenv("PERDURE_SKIP", "5:5")
    back = gloo.run(2, train)
    assert back == [{5: [20, 21]}, {5: [22, 23]}]
    assert committed(place) == [2, 4, 5]


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [("PERDURE_RESUME", "must", "no step to restore"), ("PERDURE_RESTORE_BEFORE", "3", "no step below 3")],
)
def test_two_ranks_that_find_nothing_both_need_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)

    def begin() -> str:
        try:
            Loop(tmp_path / "run")
        except NeedsPerson as error:
            return str(error)
        return "began"

    assert all(sentence in told for told in gloo.run(2, begin))
