"""`perdure.attach` as its peer would have it: the same call, written with torch.distributed.checkpoint (DCP).

Lets `recover.py` run one training script on both sides. It does what a careful user of DCP does by hand: `async_save`
of model, optimizer, scheduler, sample position and random state every few steps over a group of its own; at the start
the newest finished step is loaded. It lacks what perdure adds (verification, another number of ranks, signals).
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, Sampler

__all__ = ["Run", "attach"]

KEPT_IN_SHARED_MEMORY = StagingOptions(
    use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
)
KEEP = 2  # finished steps


class Run:
    """A training run that saves itself. ``step`` counts the optimizer steps done over all starts."""

    def __init__(self, model: Any, optimizer: Any, *, scheduler: Any, folder: pathlib.Path, every: int) -> None:
        self.step = 0
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        self._folder, self._every = folder, every
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._stager = DefaultStager(KEPT_IN_SHARED_MEMORY)
        self._saving: Future[Any] | None = None
        optimizer.register_step_post_hook(lambda *_: self._count())
        self._load()

    def _count(self) -> None:
        self.step += 1

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": self._scheduler.state_dict(),
            "step": torch.tensor(self.step),
            f"rng{self._rank}": torch.get_rng_state(),
        }

    def _finished(self) -> list[pathlib.Path]:
        """Folders of finished steps, oldest first: DCP writes .metadata last."""
        return sorted(path.parent for path in self._folder.glob("step-*/.metadata"))

    def _load(self) -> None:
        finished = self._finished()
        if not finished:
            return
        state = self._state()
        dcp.load(state, checkpoint_id=finished[-1])
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self._scheduler.load_state_dict(state["scheduler"])
        self.step = int(state["step"])
        torch.set_rng_state(state[f"rng{self._rank}"])

    def end_of_iteration(self) -> None:
        """Save if this step is one to save; wait for the save before, if it is not done yet."""
        if self.step == 0 or self.step % self._every:
            return
        if self._saving is not None:
            self._saving.result(timeout=300)
        if self._rank == 0:
            for old in self._finished()[:-KEEP]:
                shutil.rmtree(old)
        place = self._folder / f"step-{self.step:08}"
        self._saving = dcp.async_save(
            self._state(), checkpoint_id=place, process_group=self._group, async_stager=self._stager
        )


class Batches(Sampler[list[int]]):
    """The rest of the current epoch for this rank, in an order that the seed and the epoch decide."""

    def __init__(self, run: Run, *, samples: int, batch: int, seed: int) -> None:
        self._run, self._samples, self._batch, self._seed = run, samples, batch, seed
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        self._rank = dist.get_rank() if dist.is_initialized() else 0

    def __len__(self) -> int:
        return self._samples // (self._batch * self._world)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, start = divmod(self._run.step, len(self))
        order = torch.randperm(self._samples, generator=torch.Generator().manual_seed(self._seed + epoch))
        for index in range(start, len(self)):
            first = (index * self._world + self._rank) * self._batch
            yield order[first : first + self._batch].tolist()
            self._run.end_of_iteration()


def attach(
    model: Any, optimizer: Any, *, scheduler: Any, loader: DataLoader[Any], to: str, every: int, seed: int = 0
) -> Run:
    """Make the training resumable and load the newest finished step; the call of `perdure.attach`."""
    run = Run(model, optimizer, scheduler=scheduler, folder=pathlib.Path(to), every=every)
    batches = Batches(run, samples=len(loader.dataset), batch=loader.batch_size or 1, seed=seed)  # type: ignore[arg-type]
    object.__setattr__(loader, "batch_sampler", batches)  # DataLoader itself refuses to change it
    return run
