"""`perdure.TrainerCallback`: a Hugging Face ``Trainer`` saves every few steps, and goes on where it was.

What a callback can do, and what it cannot. It is called where a step ends, so it saves. But before it is called for the
first time, ``Trainer.train`` has settled how many batches to skip, by what it finds in ``resume_from_checkpoint``. So
`TrainerCallback.resume_from` makes such a folder, with nothing in it but the state of the trainer; everything else is
restored in ``on_train_begin``, where the optimizer and the schedule are there.

The cut of a step is the beginning of the next: then it has been logged and evaluated, and the next batches are drawn. A
generator that is restored there goes on with the very numbers, whatever was drawn on the way.

It stands among torch's files because it is a loop of torch that it saves, with torch's `Checkpointer`; transformers is
imported here alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers import TrainerCallback as _TrainerCallback
from transformers.trainer_callback import ExportableState

from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.fabric import ProcessGroupFabric
from perdure.adapters.torch.rng import Rng
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.copies import Copies
from perdure.checkpoint.remote import remote_of
from perdure.checkpoint.saved import Saved
from perdure.checkpoint.stalls import unless_stalled
from perdure.clock import Deadline
from perdure.errors import BlobMissing, CallError, PerdureError, StateMismatch, Superseded
from perdure.events import Log, Notice
from perdure.fabric import Fabric, SoloFabric, agree, all_gather_json
from perdure.process.environ import Placement
from perdure.state.scopes import RankLocal
from perdure.state.values import decode_value
from perdure.store import Note, Run, StoreUrl, open_store
from perdure.upkeep.keep import Keep

__all__ = ["TrainerCallback"]

_STATE_FILE = "trainer_state.json"  # transformers.trainer.TRAINER_STATE_NAME
_STATE_KEY = "trainer.state"


class TrainerCallback(_TrainerCallback):  # type: ignore[misc]
    """Saves a ``Trainer`` into the run at ``to`` every ``every`` steps and at its end; any number of ranks.

        callback = perdure.TrainerCallback("checkpoints/run7", every=100)
        trainer = Trainer(model, args, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_from(trainer))

    Saved are the model, the optimizer, the schedule, the trainer's and its callbacks' state, the scaler of float16, and
    each rank's random generators; a save returns when they are copied, and is durable later. All other options are
    those of `perdure.Checkpointer`; steps that ``remote_every`` divides are saved too, to be carried on. Set
    ``save_strategy="no"``, or the trainer saves by itself too.
    """

    def __init__(
        self,
        to: str | os.PathLike[str],
        *,
        every: int,
        agent: bool = True,
        tiers: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        remote_every: int | None = None,
        remote_keep: Keep | None = None,
        remote_bytes_per_s: float | None = None,
        keep: Keep | None = None,
        coding: str = "raw",
        memory_bytes: int | None = None,
        drain_bytes_per_s: float | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        if type(every) is not int or every < 1:
            raise CallError(f"every={every!r}: a whole number of steps, 1 or more")
        place = StoreUrl.parse(to)
        self._to, self._every, self._remote_every = os.fspath(to), every, remote_every
        self._deadlines = deadlines or Deadlines()
        self._remote = remote_of(
            place,
            tiers,
            every=remote_every,
            keep=remote_keep,
            home_keep=keep,
            bytes_per_s=remote_bytes_per_s,
            agent=agent and place.scheme != "ram",
            open_store=open_store,
        )
        self._make = functools.partial(
            Checkpointer,
            to,
            agent=agent,
            tiers=tiers,
            remote_every=remote_every,
            remote_keep=remote_keep,
            remote_bytes_per_s=remote_bytes_per_s,
            keep=keep,
            coding=coding,
            memory_bytes=memory_bytes,
            drain_bytes_per_s=drain_bytes_per_s,
            deadlines=deadlines,
        )
        self._ckpt: Checkpointer | None = None
        self._rng = Rng()
        self._rng_state: dict[str, Any] | None = None
        self._trainer: Trainer | None = None
        self._folder: str | None = None
        self._resume: int | None = None
        self._saved_at: int | None = None
        self._last: Saved | None = None

    def resume_from(self, trainer: Trainer, *, step: int | None = None) -> str | None:
        """What to give ``trainer.train`` as ``resume_from_checkpoint``: None if the run has no step yet.

        Called by every rank. ``step`` asks for that step instead of the newest committed one.
        """
        if not any(each is self for each in trainer.callback_handler.callbacks):
            raise CallError("this callback is none of the trainer's; give Trainer(..., callbacks=[callback])")
        if trainer.is_deepspeed_enabled:
            raise CallError("DeepSpeed keeps state that a callback does not see; use its own checkpoints")
        self._trainer = trainer
        self._resume, state = self._agreed(step)
        if self._resume is None or state is None:
            return None
        self._folder = tempfile.mkdtemp(prefix="perdure-resume-")
        with open(os.path.join(self._folder, _STATE_FILE), "w", encoding="utf-8") as file:
            file.write(state)
        # Weights come from the run, when the model is where it trains; a trainer without this method says so itself.
        trainer._load_from_checkpoint = lambda *_, **__: None
        return self._folder

    # --- what the trainer calls --------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Everything is made and nothing is trained: restore."""
        if self._trainer is None:
            raise CallError(
                "this callback has not looked for steps to go on from; call "
                "trainer.train(resume_from_checkpoint=callback.resume_from(trainer))"
            )
        self._ckpt = self._make()
        self._rng.rank = self._ckpt.rank
        if self._resume is None:
            return
        self._let_go_of_folder()
        if state.global_step != self._resume:
            raise CallError(
                f"the trainer begins at step {state.global_step}, but step {self._resume} is to be restored; call "
                "trainer.train(resume_from_checkpoint=callback.resume_from(trainer))"
            )
        self._ckpt.restore(self._tree(state, objects), step=self._resume)
        self._rng_state = self._rng.state_dict()  # again where it was saved: the loader draws numbers until then
        self._saved_at, self._resume = state.global_step, None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """The step before is over and the next one's batches are drawn."""
        if self._rng_state is not None:
            self._rng.load_state_dict(self._rng_state)
            self._rng_state = None
        if any(state.global_step % each == 0 for each in (self._every, self._remote_every) if each is not None):
            self._save(state, objects)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """After the last step: save, before the trainer may put its best model in the place of this one."""
        if control.should_training_stop or state.global_step >= state.max_steps:
            self._save(state, objects)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Wait until all is durable; raises what a save failed with."""
        self._let_go_of_folder()
        if self._ckpt is not None:
            try:
                if self._last is not None:
                    self._last.committed()
            finally:
                self._ckpt.close()
        self._ckpt = self._trainer = self._last = None

    # --- how ---------------------------------------------------------------------------------------------------------

    def _save(self, state: TrainerState, objects: dict[str, Any]) -> None:
        if state.global_step == 0 or state.global_step == self._saved_at or self._ckpt is None:
            return
        if self._last is not None and isinstance(self._last.error, Superseded):
            raise self._last.error
        assert self._trainer is not None, "training has begun"
        self._trainer.store_flos()
        self._last = self._ckpt.save(state.global_step, self._tree(state, objects))
        self._saved_at = state.global_step

    def _tree(self, state: TrainerState, objects: dict[str, Any]) -> dict[str, Any]:
        assert self._trainer is not None, "training has begun"
        optimizer, scaler = objects["optimizer"], self._trainer.accelerator.scaler
        tree = {
            "model": objects["model"],
            "optimizer": getattr(optimizer, "optimizer", optimizer),  # accelerate's is around torch's
            "scheduler": objects["lr_scheduler"],
            "rng": RankLocal(self._rng),
            "trainer": {"state": RankLocal(self._told(state))},  # times in it differ from rank to rank
        }
        return tree if scaler is None else tree | {"scaler": scaler}

    def _told(self, state: TrainerState) -> str:
        """The trainer's state as its own JSON, with what its callbacks have to add by now."""
        assert self._trainer is not None, "training has begun"
        added = [*self._trainer.callback_handler.callbacks, self._trainer.control]
        kept: list[Any] = [each for each in added if isinstance(each, ExportableState)]
        return json.dumps(dataclasses.asdict(dataclasses.replace(state, stateful_callbacks=kept)), sort_keys=True)

    def _agreed(self, step: int | None) -> tuple[int | None, str | None]:
        """The step that rank 0 finds, and the trainer's state then, alike on all ranks."""
        many = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        fabric: Fabric = ProcessGroupFabric() if many else SoloFabric()
        deadline = Deadline.after(self._deadlines.agree_s, "all ranks to ask where to begin")
        found: tuple[int | None, str | None] = None, None
        outcome: PerdureError | None = None
        if fabric.rank == 0:
            try:
                found = self._ask(step)
            except PerdureError as error:
                outcome = error
        agree(fabric, outcome, deadline=deadline)
        number, state = all_gather_json(fabric, found, deadline=deadline)[0]
        return number, state

    def _ask(self, step: int | None) -> tuple[int | None, str | None]:
        def look() -> tuple[int | None, str | None]:
            home, remote = open_store(self._to), self._remote
            if remote is not None:
                remote.bring_home(home, self._note)
            try:
                run = Run.open(home, create=False)
                copies = Copies(run)
                if remote is not None:
                    copies = Copies(run, lambda: remote.opened(self._note), place=remote.url)
                chain = copies.chain(step=step, most=1)
                if not chain or step not in (None, chain[-1].step):
                    raise BlobMissing(
                        f"step {step} is not in {self._to} to go on from; `perdure checkpoint ls` lists what is",
                        step=step,
                    )
            except BlobMissing:
                if step is not None:
                    raise
                return None, None
            found = chain[-1]
            value = copies.catalog(found)[0].local_values.get((0, _STATE_KEY))
            state = decode_value(value, key=_STATE_KEY)
            if type(state) is not str:
                raise StateMismatch(f"step {found.step} of {self._to} was saved by no Trainer", missing=[_STATE_KEY])
            return found.step, state

        return unless_stalled(lambda moved: look(), stall_s=self._deadlines.stall_s, what=f"the steps of {self._to}")

    def _note(self, note: Note) -> None:
        """What rank 0 is told of its stores before there is a `Checkpointer`."""
        log = Log(Placement.read().events)
        log.emit(Notice(text=note.message))
        log.close()

    def _let_go_of_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            with contextlib.suppress(AttributeError):
                del self._trainer._load_from_checkpoint  # type: ignore[union-attr]
