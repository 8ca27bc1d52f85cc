"""What a launcher tells the ranks about going on: that there must be something to restore, how far back to go, which
batches to leave out. `perdure.process.environ` reads it; `attach` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.loader import batches_consumed, is_resumable, skip_batches
from perdure.errors import CallError, IntegrityError, NeedsPerson, PerdureError, from_wire, to_wire
from perdure.events import Notice
from perdure.process.environ import Placement

__all__ = ["Skips", "require_skippable", "restore_as_told"]


def restore_as_told(
    ckpt: Checkpointer, tree: Mapping[str, Any], *, step: int | None, told: Placement, where: str
) -> int | None:
    """Restore ``step``, else the newest step, or the newest below the one that the launcher rolls back to.

    Called by every rank. Returns the step; None if there is nothing and that is allowed. A roll-back takes a committed
    step of the branch; newer ones stay in the store, and what is saved next follows the older one.

    Raises `NeedsPerson` if there must be something and there is not, `CallError` if ``step`` is one to roll back from.
    """
    before = told.restore_before
    if before is None:
        found = ckpt.restore(tree, step=step)
        if found is None and told.resume_must:
            raise NeedsPerson(
                f"there is no step to restore at {where}, and this job is to go on, never to begin from scratch; see "
                "that this is the place of the run and that it can be read (PERDURE_RESUME=must)"
            )
        return found
    if step is not None and step >= before:
        raise CallError(
            f"the script asks for step {step}, but the launcher rolls back to a step below {before}; "
            "call attach without step="
        )
    if step is not None:
        return ckpt.restore(tree, step=step)
    steps = _steps(ckpt)
    last: IntegrityError | None = None
    for each in reversed([each for each in steps if each < before]):
        try:
            return ckpt.restore(tree, step=each)
        except IntegrityError as error:  # on all ranks alike: the next older one
            ckpt.tell(Notice(text=f"step {each} could not be used ({error})"))
            last = error
    if last is not None:
        raise last
    has = f"its oldest step is {steps[0]}" if steps else "there is no step at all"
    raise NeedsPerson(
        f"there is no step below {before} to roll back to at {where}: {has}; keep more steps, or train on without the "
        "roll-back (PERDURE_RESTORE_BEFORE)"
    )


def _steps(ckpt: Checkpointer) -> list[int]:
    """The committed steps, oldest first, as rank 0 sees them."""
    told: dict[str, Any] = {}
    if ckpt.rank == 0:
        try:
            told = {"steps": ckpt.steps()}
        except PerdureError as error:
            told = {"error": to_wire(error)}
    told = ckpt.word_of_rank_0(told, "all ranks to roll back")
    if "error" in told:
        raise from_wire(told["error"])
    return list(told["steps"])


def require_skippable(loader: Any, *, why: str) -> None:
    """Raise `CallError` if no batch of ``loader`` can be left out; ``why`` begins the sentence."""
    if not is_resumable(loader):
        what = "there is no loader" if loader is None else f"the position of a {type(loader).__name__} is its own"
        raise CallError(
            f"{why}, but {what}; give attach a plain DataLoader (loader=), or leave batches out in the script and do "
            "not ask for it",
            key="loader",
        )


class Skips:
    """Leaves out the batches that would lead to given steps of one rank's loop.

    ``ranges`` are first and last steps. A range begins at the first draw after step ``first - 1``, and the step that is
    done then is ``first`` all the same: steps are counted by what the optimizer did. So a range means the run as it is
    with those before it left out, and two that begin at the same step add up. A run that is restored at ``first`` or
    later has left them out already, or never will: a roll-back goes with them.
    """

    def __init__(
        self, ranges: tuple[tuple[int, int], ...], loader: Any, *, draws: bool, tell: Callable[[Notice], None]
    ) -> None:
        """``draws`` is false for ranks of a pipeline that have no loader; the ranks that have one leave out."""
        self._ranges = ranges if draws else ()
        self._loader = loader
        self._tell = tell
        self._at: int | None = None
        self._moved = False
        self._per_step: int | None = None
        if self._ranges:
            require_skippable(loader, why="batches are to be left out (PERDURE_SKIP)")
        self._was = batches_consumed(loader) if self._ranges else (0, 0, 0)

    def before_draw(self, step: int) -> None:
        """The loop is about to draw, with ``step`` completed steps."""
        n_steps = sum(last - first + 1 for first, last in self._ranges if first == step + 1)
        if not n_steps or self._at == step:
            return
        self._at, self._moved = step, True
        n_batches = n_steps * self._batches_a_step(step)
        skip_batches(self._loader, n_batches)
        self._tell(Notice(text=f"after step {step} the next {n_batches} batches are left out, as the launcher said"))

    def stepped(self) -> None:
        """A step is complete: count how many batches led to it, where they are of one epoch."""
        if not self._ranges:
            return
        epoch, consumed, _ = now = batches_consumed(self._loader)
        if epoch == self._was[0] and consumed > self._was[1] and not self._moved:
            self._per_step = consumed - self._was[1]
        self._was, self._moved = now, False

    def _batches_a_step(self, step: int) -> int:
        """How many batches lead to a step (more than one where gradients are accumulated)."""
        if self._per_step is not None:
            return self._per_step
        epoch, consumed, whole = batches_consumed(self._loader)
        total = epoch * whole + consumed
        steps = step + sum(last - first + 1 for first, last in self._ranges if first <= step)  # with those left out
        if step == 0:
            raise CallError(
                "the batches of the first step are to be left out (PERDURE_SKIP), but how many lead to a step is known "
                "only after one; begin with another seed instead"
            )
        if total % steps or not total:
            raise CallError(
                f"batches are to be left out after step {step} (PERDURE_SKIP), but {total} batches in {steps} steps do "
                "not say how many lead to one; roll back one checkpoint further, so that a step is done before"
            )
        return total // steps
