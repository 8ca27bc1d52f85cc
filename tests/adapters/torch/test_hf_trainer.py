"""A `Trainer` that was stopped goes on as one that was not, bit for bit."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

import perdure
from perdure.errors import BlobMissing, CallError, StateMismatch

from . import gloo
from .hf_small import train, trainer_of

STEPS = 6  # an epoch has four


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Counts(TrainerCallback, ExportableState):
    """Has a state of its own."""

    def __init__(self) -> None:
        self.seen = 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seen": self.seen}}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen += 1


class Stops(TrainerCallback):
    """Breaks training off at the end of a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            raise KeyboardInterrupt


RESTORES: dict[str, Any] = {"steps": STEPS, "restore_callback_states_from_checkpoint": True}


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def facts(trainer: Trainer) -> dict[str, Any]:
    """All that must be the same, however often training was stopped."""
    counts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, Counts))
    return {
        "model": [each.detach().numpy().tobytes() for each in trainer.model.parameters()],
        "optimizer": plain(trainer.optimizer.state_dict()),
        "scheduler": str(trainer.lr_scheduler.state_dict()),
        "log": [(each["step"], each["loss"], each["learning_rate"]) for each in trainer.state.log_history[:-1]],
        "flos": trainer.state.total_flos,
        "counts": counts.seen,
        "rng": torch.get_rng_state().tolist(),
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return facts(train(tmp_path_factory.mktemp("whole"), Counts(), steps=STEPS))


@pytest.mark.parametrize("stops", [(3,), (3, 5)], ids=["within an epoch", "and again after its end"])
def test_a_training_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, uninterrupted: dict[str, Any], stops: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, Counts(), Stops(stop), **RESTORES)
    again = train(tmp_path, Counts(), **RESTORES)
    found = facts(again)
    assert [step for step, *_ in found["log"]] == list(range(1, STEPS + 1))
    assert found == uninterrupted
    assert perdure.Checkpointer(tmp_path / "run", agent=False).steps() == [2, 4, 6]
    assert not list((tmp_path / "temporary").glob("perdure-*"))


def test_a_callback_that_was_not_asked_where_to_begin_says_so(tmp_path: Path) -> None:
    callback = perdure.TrainerCallback(tmp_path / "run", every=2, agent=False)
    with pytest.raises(CallError, match="resume_from"):
        trainer_of(tmp_path, callback).train()
    other = perdure.TrainerCallback(tmp_path / "run", every=2, agent=False)
    with pytest.raises(CallError, match="callbacks="):
        callback.resume_from(trainer_of(tmp_path, other))
    with pytest.raises(CallError, match="every=0"):
        perdure.TrainerCallback(tmp_path / "run", every=0)


def test_steps_that_are_not_there_or_of_no_trainer_are_refused(tmp_path: Path) -> None:
    callback = perdure.TrainerCallback(tmp_path / "run", every=2, agent=False)
    trainer = trainer_of(tmp_path, callback)
    assert callback.resume_from(trainer) is None
    with pytest.raises(BlobMissing):
        callback.resume_from(trainer, step=4)
    ckpt = perdure.Checkpointer(tmp_path / "run", agent=False)
    ckpt.save(1, {"w": torch.ones(1)}).committed()
    ckpt.close()
    with warnings.catch_warnings(), pytest.raises(StateMismatch, match="no Trainer"):
        callback.resume_from(trainer)


def test_a_folder_that_is_not_given_to_the_trainer_is_missed_before_anything_is_trained(tmp_path: Path) -> None:
    train(tmp_path, steps=2)
    callback = perdure.TrainerCallback(tmp_path / "run", every=2, agent=False)
    trainer = trainer_of(tmp_path, callback, steps=3)
    assert callback.resume_from(trainer) is not None
    with pytest.raises(CallError, match="begins at step 0, but step 2"):
        trainer.train()


def test_steps_are_carried_to_a_remote_store_and_training_goes_on_from_there(
    tmp_path: Path, uninterrupted: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    saving = {"tiers": tmp_path / "far", "remote_every": 2, "coding": "lossless", "remote_keep": "last=1"}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Counts(), Stops(5), every=3, saving=saving, **RESTORES)
    far = perdure.Checkpointer(tmp_path / "far", agent=False)
    far.wait_for(step_after=2, timeout_s=30)
    assert perdure.Checkpointer(tmp_path / "run", agent=False).steps() == [2, 3, 4]
    assert far.steps() == [4]
    shutil.rmtree(tmp_path / "run")
    again = train(tmp_path, Counts(), every=3, saving=saving, **RESTORES)
    assert "was empty: it goes on as the run that lies in" in capfd.readouterr().err
    assert facts(again) == uninterrupted
    assert far.steps() == [6]


def test_options_of_the_checkpointer_that_cannot_work_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="remote_every says how steps are carried"):
        perdure.TrainerCallback(tmp_path / "run", every=2, remote_every=2)


@pytest.mark.slow
def test_two_ranks_that_were_stopped_end_as_two_that_were_not(tmp_path: Path) -> None:
    def work() -> Any:
        rank = torch.distributed.get_rank()
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        options = RESTORES | {"ddp_backend": "gloo"}
        whole = facts(train(tmp_path / "whole", Counts(), **options))
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "stopped", Counts(), Stops(3), **options)
        again = facts(train(tmp_path / "stopped", Counts(), **options))
        return [name for name in whole if whole[name] != again[name]], again["model"]

    (differs, model), (differs_1, model_1) = gloo.run(2, work, tcp=True, timeout_s=100)
    assert differs == differs_1 == []
    assert model == model_1
