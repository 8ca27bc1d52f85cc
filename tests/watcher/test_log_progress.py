"""What lines of running jobs say of steps and losses, in the formats of different trainers."""

from __future__ import annotations

import math

import pytest

from perdure.watcher.logs.progress import Progress, Said
from perdure.watcher.logs.reading import lines_of


def said(text: str) -> list[Said]:
    progress = Progress()
    return [found for line in lines_of(text) if (found := progress.read(line)) is not None]


@pytest.mark.parametrize(
    ("line", "step", "loss"),
    [
        ("[rank3]: step 12/100 | loss: 2.5 | number of skipped iterations: 0", 12, 2.5),
        ('{"step": 12, "loss": 2.5, "lr": 0.1}', 12, 2.5),
        ("2026-01-02 03:04:05,678 INFO global_step=12 train_loss=2.5", 12, 2.5),
        ("iter 12: loss 2.5000, time 30.2ms", 12, 2.5),
        ("step: 12  loss:  nan  grad_norm: inf", 12, math.nan),
        ("saving every 500 steps, warmup steps: 100", None, None),
        ("step 12: val loss 2.5", None, None),
        ("step 12 aux loss: 0.1 loss: 2.5", 12, 2.5),
    ],
)
def test_step_and_loss_of_a_line(line: str, step: int | None, loss: float | None) -> None:
    found = said(line)
    got = found[0] if found else Said()
    assert got.step == step
    assert got.loss == loss or (loss is not None and math.isnan(loss) and got.loss is not None and math.isnan(got.loss))


def test_steps_that_begin_anew_with_an_epoch_go_on_and_those_of_a_restore_go_back() -> None:
    of_epochs = "".join(f"epoch {epoch} step {step} loss: 2.0\n" for epoch in (0, 1) for step in range(1, 4))
    assert [each.step for each in said(of_epochs)] == [1, 2, 3, 4, 5, 6]
    restored = "step 8 loss: 2\nstep 9 loss: 2\nresuming from checkpoint\nstep 7 loss: 2\nstep 8 loss: 2\n"
    assert [each.step for each in said(restored)] == [8, 9, 7, 8]


def test_losses_without_a_step_are_counted_and_the_first_name_is_kept() -> None:
    assert [each.step for each in said("{'loss': 2.0}\n{'loss': 1.9}\n{'loss': 1.8}")] == [1, 2, 3]
    mixed = "step 1 lm loss: 2.0\nstep 1 loss: 9.0\nstep 2 lm loss: 2.0\nstep 2 loss: 9.0\n"
    assert {each.loss for each in said(mixed) if each.loss is not None} == {2.0}


def test_a_time_that_is_printed_is_taken_before_a_rate_and_a_rate_before_the_clock() -> None:
    assert said("step 1 loss: 2 step time (ms): 250.0 samples/s: 3")[0].step_s == 0.25
    assert said("step 1 loss: 2 tokens/s: 4")[0].step_s == 0.25
    clock = "2026-01-02 03:04:05,100 step 1 loss: 2\n2026-01-02 03:04:06,100 step 3 loss: 2\n"
    assert [each.step_s for each in said(clock)] == [None, 0.5]
