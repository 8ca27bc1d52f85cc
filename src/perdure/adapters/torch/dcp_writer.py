"""``torch.distributed.checkpoint`` saves into a run: `StorageWriter`.

DCP brings the two meetings that a commit needs. In the first the coordinator claims the epoch and gives every rank its
ticket; then each rank writes its packs and its part; in the second the coordinator, which has all parts now, commits.
So nothing here talks to another rank, and a save on DCP's background thread is as good as one on the training's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from perdure.adapters.torch.dcp_packing import Packing, box_of, value_digests
from perdure.adapters.torch.dcp_steps import step_of
from perdure.adapters.torch.dcp_writing import Ticket, writing_to
from perdure.adapters.torch.tensors import dtype_name
from perdure.checkpoint import drain
from perdure.checkpoint.asked import checked_metric, checked_step
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.stalls import unless_stalled
from perdure.clock import Deadline
from perdure.codec.dtypes import DTYPES
from perdure.errors import CallError, PerdureError, StateMismatch
from perdure.events import Log, Notice
from perdure.layout import Layout, Piece, TensorLayout
from perdure.store import Commit, Note, PartRef, Run, StoreUrl, open_store
from perdure.store.places import part_name

__all__ = ["StorageWriter"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Wrote:
    """What a rank tells the coordinator of its part."""

    ref: PartRef
    value_digests: dict[str, str]
    inner: list[str]


class _Save(threading.local):
    """What a writer knows of the save that it does on this thread. It may do others on other threads meanwhile."""

    step: int | None = None
    order: drain.Order | None = None
    offered: Sequence[WriteItem] = ()


class StorageWriter(storage.StorageWriter):
    """Lets ``dcp.save`` and ``dcp.async_save`` save steps of the run at ``url``.

    ``dcp.save(state_dict, checkpoint_id="step-100", storage_writer=perdure.dcp.StorageWriter(url))``

    The step is the number at the end of ``checkpoint_id``, else ``step``. When the call returns (or its future is
    done) the step is durable and committed on all ranks, or it failed on all and the step before is still the newest.
    Steps rise; the first goes on from the step that `StorageReader` loaded in this process, if one was. Of saves that
    overlap (``dcp.async_save``) all are committed in order, or an older one is refused, never the newest.
    ``meta``, ``metric`` and ``pin`` are recorded in the commit, as `Checkpointer.save` does. ``deadlines.commit_s`` is
    what a rank may take to make its part durable.

    Errors come inside DCP's ``CheckpointException``: those of perdure in its ``failures``, by rank.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        meta: Mapping[str, Any] | None = None,
        metric: float | None = None,
        pin: bool = False,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._place = StoreUrl.parse(url)
        self._step = None if step is None else checked_step(step)
        self._meta, self._metric, self._pin = dict(meta or {}), checked_metric(metric), pin
        self._deadlines = deadlines or Deadlines()
        self._save = _Save()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether ``checkpoint_id`` says which step it is."""
        try:
            step_of(checkpoint_id)
        except CallError:
            return False
        return True

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The next save is the step that ``checkpoint_id`` says."""
        if checkpoint_id is not None:
            self._save.step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuse what cannot be committed by all ranks together."""
        if not kwargs.get("use_collectives", True):
            raise CallError("use_collectives=False lets no rank commit for all; leave it out")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """On every rank: say which step is meant."""
        _check_no_caching([plan])
        step = self._step if self._save.step is None else self._save.step
        if step is None:
            raise CallError(
                "nothing says which step this is; give checkpoint_id='step-100', or StorageWriter(url, step=100)"
            )
        self._save.offered = plan.items
        return replace(plan, storage_data=step)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: prove that nothing is missing, claim the right to commit, and tell every rank."""
        _check_no_caching(plans)
        step = plans[0].storage_data
        for rank, plan in enumerate(plans):
            if plan.storage_data != step:
                raise CallError(f"rank {rank} saves step {plan.storage_data}, rank 0 step {step}", rank=rank)
        _check_whole(plans)
        thread = threading.current_thread()
        order, parent = self._within(lambda: self._begin(step, thread, len(plans)), f"beginning step {step}")
        self._save.order = order = replace(order, meta=self._meta, metric=self._metric, pinned=self._pin)
        slot = None if parent is None else parent.slot
        save = parent.seq if parent is not None and parent.session == order.session else None
        return [
            replace(plan, storage_data=Ticket(rank, len(plans), order, slot, save)) for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """On every rank: make its part durable."""
        if getattr(planner, "_enable_plan_caching", False):
            _refuse_caching()  # before the second save, whose plan would bring the ticket of this one
        ticket: Ticket = plan.storage_data
        packing = Packing(plan, planner)
        writing = writing_to(self._place)
        segment = writing.pool.take(packing.nbytes, Deadline.after(self._deadlines.stage_s, "a segment to copy to"))
        try:
            index = packing.fill(segment.view, rank=ticket.rank, world=ticket.world)
        except BaseException:
            writing.pool.give_back(segment)
            raise
        view = segment.view[: packing.nbytes]

        def write() -> drain.WrittenPart:
            try:
                run = self._run()
                stored = writing.stored(run, ticket)
                name = f"rank{ticket.rank}"
                return drain.write_part(run, ticket.order, writer=name, packs=[(index, view)], stored=stored)
            finally:
                writing.pool.give_back(segment)

        part = self._within(write, f"writing step {ticket.order.step}")
        writing.wrote(ticket, part)
        told = _Wrote(part.ref, value_digests(self._save.offered, planner), packing.inner)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(""), part.nbytes, told)])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, with the parts of all ranks: commit."""
        order = self._save.order
        assert order is not None, "DCP plans before it writes"
        told: list[_Wrote] = [rank[0].storage_data for rank in results]
        for name in (name for each in told for name in each.inner):
            if name in metadata.state_dict_metadata:
                raise CallError(f"two entries would both be saved as {name}; rename one", key=name)
        _check_alike(told)
        writing, parts = writing_to(self._place), [each.ref for each in told]
        self._within(lambda: writing.commit(self._run(), order, parts), f"committing step {order.step}")
        writing.ended(order)

    # --- the coordinator's -------------------------------------------------------------------------------------------

    def _begin(self, step: int, thread: threading.Thread, world: int) -> tuple[drain.Order, Commit | None]:
        run = Run.open(open_store(self._place), create=True, tell=_tell)
        writing = writing_to(self._place)
        for given_up, its_world in writing.given_up(thread):
            _withdraw(run, given_up, its_world)
        return writing.begin(run, step, writer=self, thread=thread, world=world)

    def _run(self) -> Run:
        return Run.open(open_store(self._place), create=False, tell=_tell)

    def _within(self, work: Callable[[], Result], what: str) -> Result:
        """Do ``work``, which waits for a store that may hang."""
        return unless_stalled(lambda moved: work(), stall_s=self._deadlines.commit_s, what=what)

    def __getstate__(self) -> dict[str, Any]:
        """For the process that DCP may save in: it goes on from what was loaded here."""
        step = self._step if self._save.step is None else self._save.step
        return {**self.__dict__, "_step": step, "_save": None, "_base": writing_to(self._place).base}

    def __setstate__(self, state: dict[str, Any]) -> None:
        base = state.pop("_base")
        self.__dict__.update(state, _save=_Save())
        writing = writing_to(self._place)
        if base is not None and writing.base != base:
            writing.went_on_from(*base)


def _tell(note: Note) -> None:
    Log().emit(Notice(text=note.message))


def _refuse_caching() -> NoReturn:
    raise CallError(
        "a planner that caches plans brings the ranks the ticket of an older save; use "
        "DefaultSavePlanner(enable_plan_caching=False)"
    )


def _check_no_caching(plans: Sequence[SavePlan]) -> None:
    if not all(plan.usable for plan in plans):
        _refuse_caching()


def _check_whole(plans: Sequence[SavePlan]) -> None:
    """Refuse plans that together leave a gap in a tensor, or disagree on what it is."""
    forms: dict[str, tuple[str, tuple[int, ...]]] = {}
    pieces: dict[str, list[Piece]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data = item.tensor_data
            if data is None:
                continue
            name, form = item.index.fqn, (dtype_name(data.properties.dtype), tuple(data.size))
            if forms.setdefault(name, form) != form:
                raise StateMismatch(
                    f"{name} is {form[0]}{list(form[1])} on rank {rank}, {forms[name][0]}{list(forms[name][1])} on "
                    "another; give what differs from rank to rank a key for each rank",
                    shape=[name],
                )
            pieces.setdefault(name, []).append(Piece.alone(rank, box_of(item)))
    for name, (dtype, _) in forms.items():
        if dtype not in DTYPES:
            raise CallError(f"{name} has the dtype {dtype}, which has no place in a run; convert it", tensor=name)
    Layout(
        {
            name: TensorLayout(shape, tuple(pieces[name]), f"uint{DTYPES[dtype].bits}")
            for name, (dtype, shape) in forms.items()
        }
    ).check()


def _check_alike(told: Sequence[_Wrote]) -> None:
    """Refuse a value that DCP would take from one rank though another has a different one."""
    first: dict[str, tuple[int, str]] = {}
    for rank, each in enumerate(told):
        for key, found in each.value_digests.items():
            other, known = first.setdefault(key, (rank, found))
            if known != found:
                raise StateMismatch(
                    f"the value {key} differs between rank {other} and rank {rank}, and one of them would be lost; "
                    "give each rank a key of its own",
                    unexpected=[key],
                )


def _withdraw(run: Run, order: drain.Order, world: int) -> None:
    """Delete what ranks wrote for a save that was given up."""
    if drain.find_commit(run, order, after=None) is not None:
        return  # its commit was made, and only the answer was lost
    for rank in range(world):
        with suppress(PerdureError):  # what cannot be read or deleted is left to a prune
            name = part_name(epoch=order.epoch, step=order.step, seq=order.seq, writer=f"rank{rank}")
            ref = run.part_ref(name)
            if ref is not None:
                drain.withdraw(run, ref)
