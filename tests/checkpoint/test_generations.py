"""The agent's memory, driven by any order of events: what is kept, who is told, when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.checkpoint.generations import Machine
from perdure.checkpoint.messages import (
    Abandon,
    Adopt,
    Adopted,
    Begin,
    Committed,
    Complete,
    Failed,
    Sample,
    Staged,
    Terms,
)
from perdure.checkpoint.vocabulary import Action, Broken, Client, Digest, Drain, Drained, Exit, Generation, Grant, Tell
from perdure.errors import (
    AgentLost,
    PerdureError,
    ProtocolError,
    RankFailed,
    StateMismatch,
    StorageFull,
    Superseded,
    from_wire,
    to_wire,
)
from perdure.state.index import RankIndex

FULL = StorageFull("no space left", file="x")
LEASE_S = 60.0


def rank(
    number: int, *, session: str = "s", world: int = 2, client: int | None = None, local_rank: int | None = None
) -> Client:
    return Client(
        number + 1 if client is None else client,
        session=session,
        rank=number,
        world=world,
        local_rank=number if local_rank is None else local_rank,
        local_world=world,
    )


def begin(
    seq: int = 1, step: int = 10, *, plan_id: str = "p", nbytes: int = 100, within_s: float | None = None
) -> Begin:
    return Begin(seq=seq, step=step, nbytes=nbytes, plan_id=plan_id, within_s=within_s)


def staged(client: Client, seq: int = 1, step: int = 10, **more: Any) -> Staged:
    said: dict[str, Any] = {
        "epoch": 1,
        "base_slot": None,
        "base_generation": None,
        "samples": [],
        "value_digests": {},
        "raw_nbytes": 100,
        "terms": Terms(),
    }
    index = RankIndex(rank=client.rank, world=client.world, tensors=(), values=())
    return Staged(seq=seq, step=step, index=index, **said | more)


def told(actions: list[Action], client: Client) -> list[Any]:
    return [action.message for action in actions if isinstance(action, Tell) and action.client == client.id]


def failures(actions: list[Action], client: Client) -> list[PerdureError]:
    return [from_wire(message.error) for message in told(actions, client) if isinstance(message, Failed)]


def grants(actions: list[Action]) -> list[Grant]:
    return [action for action in actions if isinstance(action, Grant)]


def drains(actions: list[Action]) -> list[Drain]:
    return [action for action in actions if isinstance(action, Drain)]


def digests(actions: list[Action]) -> list[Generation]:
    return [action.generation for action in actions if isinstance(action, Digest)]


def met(*clients: Client, lease_s: float = LEASE_S) -> Machine:
    """A machine that ``clients`` have joined at time 0."""
    machine = Machine(lease_s=lease_s, now=0.0)
    for client in clients:
        assert machine.joined(client, 0.0) == []
    return machine


def saved(machine: Machine, *clients: Client, seq: int = 1, step: int = 10, **more: Any) -> tuple[Generation, Drain]:
    """Save one step on all of ``clients`` up to its drain, which the caller ends."""
    for client in clients:
        assert grants(machine.begun(client, begin(seq, step)))
    actions: list[Action] = []
    for client in clients:
        actions = machine.staged(client, staged(client, seq, step, **more))
    (generation,) = digests(actions)
    (drain,) = drains(machine.digested(generation))
    assert drain.generation is generation
    return generation, drain


def committed(machine: Machine, generation: Generation, slot: int) -> list[Action]:
    return machine.drained(generation, Drained(slot, 200, 220, 0.5))


# --- one save --------------------------------------------------------------------------------------------------------


def test_a_save_goes_from_begin_to_committed_and_every_rank_is_told() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    (first,) = grants(machine.begun(a, begin()))
    (second,) = grants(machine.begun(b, begin()))
    assert (first.client, second.client) == (a.id, b.id)
    assert first.segment != second.segment
    assert machine.staged(a, staged(a)) == []
    actions = machine.staged(b, staged(b))
    (generation,) = digests(actions)
    assert [told(actions, each) for each in (a, b)] == [[Complete(seq=1, generation=generation.id)]] * 2
    assert machine.restorable() == []
    assert machine.undigested()
    (drain,) = drains(machine.digested(generation))
    assert drain == Drain(generation, None)
    assert machine.restorable() == [generation]
    actions = committed(machine, generation, 1)
    expected = Committed(seq=1, slot=1, raw_bytes=200, stored_bytes=220, seconds=0.5)
    assert [told(actions, each) for each in (a, b)] == [[expected]] * 2
    assert machine.restorable() == [generation]


def test_a_drain_that_fails_is_told_to_all_and_the_step_can_still_be_restored() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    generation, _ = saved(machine, a, b)
    actions = machine.drained(generation, FULL)
    assert [type(error) for each in (a, b) for error in failures(actions, each)] == [StorageFull] * 2
    assert machine.restorable() == [generation]


def test_a_step_that_cannot_be_hashed_fails_and_is_forgotten() -> None:
    a = rank(0, world=1)
    machine = met(a)
    machine.begun(a, begin())
    (generation,) = digests(machine.staged(a, staged(a)))
    actions = machine.not_digested(generation, ProtocolError("bad index"))
    assert [type(error) for error in failures(actions, a)] == [ProtocolError]
    assert machine.generations == []
    assert grants(machine.begun(a, begin(2, 20)))


def test_ranks_that_save_different_steps_all_fail_with_a_mismatch() -> None:
    a, b, c = rank(0, world=3), rank(1, world=3), rank(2, world=3)
    machine = met(a, b, c)
    machine.begun(a, begin(step=10))
    actions = machine.begun(b, begin(step=11))
    for each in (a, b, c):
        (error,) = failures(actions, each)
        assert isinstance(error, StateMismatch)
        assert "step 10" in str(error)
        assert "step 11 on rank 1" in str(error)
    actions = machine.begun(c, begin(step=10))
    assert [type(error) for error in failures(actions, c)] == [StateMismatch]
    assert machine.generations == []


def test_ranks_that_save_different_sets_of_tensors_all_fail_with_a_mismatch() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin(plan_id="p"))
    actions = machine.begun(b, begin(plan_id="q"))
    assert [type(error) for each in (a, b) for error in failures(actions, each)] == [StateMismatch] * 2


def test_replicas_that_differ_fail_the_save_and_name_tensor_and_ranks() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    machine.begun(b, begin())
    machine.staged(a, staged(a, samples=[Sample(tensor="w", digest="0")]))
    actions = machine.staged(b, staged(b, samples=[Sample(tensor="w", digest="1")]))
    for each in (a, b):
        (error,) = failures(actions, each)
        assert (error.kind, error.tensor, error.ranks) == ("replica-mismatch", "w", [0, 1])
    assert not digests(actions)
    assert machine.restorable() == []


def test_values_that_differ_fail_the_save() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    machine.begun(b, begin())
    machine.staged(a, staged(a, value_digests={"lr": "0", "same": "2"}))
    actions = machine.staged(b, staged(b, value_digests={"lr": "1", "same": "2"}))
    assert [error.tensor for error in failures(actions, a)] == ["lr"]


def test_a_rank_that_abandons_fails_the_save_on_every_rank() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    machine.begun(b, begin())
    actions = machine.abandoned(b, Abandon(seq=1, error=to_wire(FULL)), FULL)
    assert [type(error) for each in (a, b) for error in failures(actions, each)] == [StorageFull] * 2


def test_what_one_rank_abandons_before_others_begin_fails_them_at_once() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    assert machine.abandoned(b, Abandon(seq=1, error=to_wire(FULL)), FULL) == [Broken(a.session, 1, FULL)]
    actions = machine.begun(a, begin())
    assert [type(error) for error in failures(actions, a)] == [StorageFull]
    assert not grants(actions)


def test_a_rank_that_is_late_is_named_to_the_others() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin(within_s=5.0))
    machine.staged(a, staged(a))
    assert machine.tick(1.0) == []
    assert machine.tick(5.9) == []
    actions = machine.tick(6.0)
    (error,) = failures(actions, a)
    assert error.kind == "deadline"
    assert "rank 1 had not staged its part within 5 s" in str(error)


def test_a_rank_of_another_session_that_waits_excuses_nobody() -> None:
    a, b = rank(0), rank(1)
    old = rank(1, session="old", client=9)
    machine = met(a, b, old)
    for seq in (1, 2):  # both segments of local rank 1 are in use by another session
        machine.begun(old, begin(seq, seq))
    machine.begun(old, begin(3, 3))
    machine.begun(a, begin(3, 10, within_s=5.0))
    machine.staged(a, staged(a, 3))
    machine.tick(1.0)
    (error,) = failures(machine.tick(7.0), a)
    assert "rank 1 had not staged its part" in str(error)


# --- ranks that leave ------------------------------------------------------------------------------------------------


def test_a_rank_that_leaves_fails_what_it_had_not_staged() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    machine.begun(b, begin())
    machine.staged(a, staged(a))
    actions = machine.left(b.id, 1.0)
    (error,) = failures(actions, a)
    assert isinstance(error, RankFailed)
    assert error.rank == 1
    assert machine.generations == []


def test_what_a_rank_had_staged_before_it_left_is_saved() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    machine.begun(b, begin())
    machine.staged(b, staged(b))
    assert machine.left(b.id, 1.0) == []
    actions = machine.staged(a, staged(a))
    assert [type(message) for message in told(actions, a)] == [Complete]


def test_a_save_begun_after_a_rank_left_fails_at_once() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.left(b.id, 1.0)
    actions = machine.begun(a, begin())
    (error,) = failures(actions, a)
    assert (type(error), error.rank) == (RankFailed, 1)
    assert machine.generations == []
    assert not grants(actions)


def test_a_save_begun_after_a_rank_could_not_stage_it_and_left_is_told_that_reason() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.abandoned(b, Abandon(seq=1, error=to_wire(FULL)), FULL)
    machine.left(b.id, 1.0)
    assert [type(error) for error in failures(machine.begun(a, begin()), a)] == [StorageFull]
    assert [type(error) for error in failures(machine.begun(a, begin(2, 20)), a)] == [RankFailed]


def test_a_save_of_which_a_staged_rank_has_left_fails_once_for_all_when_another_begins() -> None:
    a, b, c = rank(0, world=3), rank(1, world=3), rank(2, world=3)
    machine = met(a, b, c)
    for each in (a, b):
        machine.begun(each, begin(within_s=1.0))
        machine.staged(each, staged(each))
    machine.left(b.id, 1.0)
    actions = machine.begun(c, begin(within_s=1.0))
    assert [type(error) for each in (a, c) for error in failures(actions, each)] == [RankFailed] * 2
    assert machine.generations == []
    assert machine.tick(1.0) == machine.tick(100.0) == []


def test_a_new_session_is_not_blamed_for_the_departed_of_the_old_one() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.left(b.id, 1.0)
    again = rank(0, session="t", client=7)
    machine.joined(again, 2.0)
    assert grants(machine.begun(again, begin()))


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_the_newest_complete_step_stays_until_a_newer_one_is_complete() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a, seq=1, step=1)
    committed(machine, first, 1)
    machine.begun(a, begin(2, 2))
    assert machine.restorable() == [first]
    machine.left(a.id, 1.0)
    assert machine.restorable() == [first]


def test_a_third_save_waits_while_two_are_kept_and_goes_on_when_the_older_is_durable() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a, seq=1, step=1)
    machine.begun(a, begin(2, 2))
    (second,) = digests(machine.staged(a, staged(a, 2, 2)))
    assert machine.digested(second) == []  # its turn has not come
    assert machine.begun(a, begin(3, 3)) == []  # nor is there a free segment
    actions = committed(machine, first, 1)
    assert [drain.generation for drain in drains(actions)] == [second]
    (grant,) = grants(actions)
    assert (grant.begin.seq, grant.segment) == (3, first.lanes[0])
    assert machine.generations[0] is second


def test_steps_are_drained_one_at_a_time_in_the_order_in_which_they_were_complete() -> None:
    a, z = rank(0, world=1), rank(1, world=1, session="z", client=9, local_rank=1)
    machine = met(a, z)
    machine.begun(a, begin(1, 1))
    machine.begun(z, begin(1, 7))
    (late,) = digests(machine.staged(z, staged(z, 1, 7)))
    (early,) = digests(machine.staged(a, staged(a, 1, 1)))
    assert drains(machine.digested(early)) == []  # the other one is first, though its digests take longer
    assert [drain.generation for drain in drains(machine.digested(late))] == [late]
    assert [drain.generation for drain in drains(committed(machine, late, 1))] == [early]


def test_the_first_step_of_a_session_follows_the_slot_that_the_session_went_on_from() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, drain = saved(machine, a, base_slot=41)
    assert drain.base == 41
    committed(machine, generation, 43)
    _, drain = saved(machine, a, seq=2, step=20, base_slot=41)
    assert drain.base == 41  # who drains finds the epoch's own last commit in the store


# --- going on from memory --------------------------------------------------------------------------------------------


def resumed(machine: Machine, generation: Generation, *, client: int = 11) -> tuple[Client, list[Action]]:
    """A new session that goes on from ``generation``."""
    again = rank(0, world=1, session="t", client=client)
    machine.joined(again, 2.0)
    return again, machine.adopted(again, Adopt(generation=generation.id))


def test_a_session_that_goes_on_from_a_step_being_drained_follows_its_slot() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.left(a.id, 1.0)
    again, actions = resumed(machine, generation)
    assert actions == []
    machine.begun(again, begin(1, 12))
    (heir,) = digests(machine.staged(again, staged(again, 1, 12, epoch=2, base_generation=generation.id)))
    machine.digested(heir)
    actions = committed(machine, generation, 5)
    assert told(actions, again) == [Adopted(generation=generation.id, slot=5, error=None)]
    (drain,) = drains(actions)
    assert (drain.generation, drain.base) == (heir, 5)


def test_an_adopted_step_that_was_not_drained_is_drained_again() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.drained(generation, FULL)
    machine.left(a.id, 1.0)
    again, actions = resumed(machine, generation)
    assert [drain.generation for drain in drains(actions)] == [generation]
    actions = committed(machine, generation, 1)
    assert told(actions, again) == [Adopted(generation=generation.id, slot=1, error=None)]


def test_an_adopted_step_whose_epoch_is_over_is_made_durable_under_the_new_epoch_before_its_heir() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a, base_slot=3)
    machine.drained(generation, FULL)
    machine.left(a.id, 1.0)
    again, actions = resumed(machine, generation)
    assert drains(actions)
    assert told(machine.drained(generation, Superseded("epoch 2 owns this run")), again) == []  # not the end yet
    machine.begun(again, begin(1, 12))
    actions = machine.staged(again, staged(again, 1, 12, epoch=2, base_generation=generation.id))
    (heir,) = digests(actions)
    assert machine.digested(heir) == []
    (drain,) = drains(actions)
    assert (drain.generation, drain.generation.epoch, drain.base) == (generation, 2, 3)
    actions = committed(machine, generation, 4)
    assert told(actions, again) == [Adopted(generation=generation.id, slot=4, error=None)]
    (drain,) = drains(actions)
    assert (drain.generation, drain.base) == (heir, 4)


def test_an_heir_follows_what_its_base_went_on_from_if_the_base_cannot_be_made_durable() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a, base_slot=3)
    machine.drained(generation, Superseded("epoch 2 owns this run"))
    machine.left(a.id, 1.0)
    again, _ = resumed(machine, generation)
    machine.drained(generation, Superseded("epoch 2 owns this run"))
    machine.begun(again, begin(1, 12))
    (heir,) = digests(machine.staged(again, staged(again, 1, 12, epoch=2, base_generation=generation.id)))
    machine.digested(heir)
    actions = machine.drained(generation, FULL)
    (message,) = told(actions, again)
    assert isinstance(message, Adopted)
    assert message.slot is None
    (drain,) = drains(actions)
    assert (drain.generation, drain.base) == (heir, 3)


def test_adopting_what_is_not_in_memory_is_refused() -> None:
    a = rank(0, world=1)
    machine = met(a)
    (message,) = told(machine.adopted(a, Adopt(generation=99)), a)
    assert message.slot is None
    assert message.error is not None


def test_what_was_durable_and_is_adopted_has_its_turn_again_for_its_store_may_have_been_lost() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.drained(generation, Drained(6, 200, 220, 0.5, keep=True))
    b = rank(0, session="t", world=1, client=2)
    machine.joined(b, 1.0)
    (drain,) = drains(machine.adopted(b, Adopt(generation=generation.id)))
    assert (drain.generation, drain.on, generation.by, generation.slot) == (generation, None, "t", None)
    assert told(committed(machine, generation, 4), b) == [Adopted(generation=generation.id, slot=4, error=None)]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_the_lease_runs_from_the_last_departure_and_never_while_somebody_is_connected() -> None:
    a = rank(0, world=1)
    machine = met(a, lease_s=60.0)
    assert machine.tick(1000.0) == []
    machine.left(a.id, 1000.0)
    assert machine.tick(1059.0) == []
    machine.joined(rank(0, world=1, client=5), 1059.5)
    machine.left(5, 1100.0)
    assert machine.tick(1159.0) == []
    assert machine.tick(1160.0) == [Exit()]


def test_an_agent_whom_nobody_ever_met_leaves_after_its_lease() -> None:
    machine = Machine(lease_s=60.0, now=100.0)
    assert machine.tick(159.0) == []
    assert machine.tick(160.0) == [Exit()]


def test_a_release_ends_it_without_the_lease_but_not_before_all_is_drained() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.released()
    machine.left(a.id, 1.0)
    assert machine.tick(2.0) == []
    committed(machine, generation, 1)
    assert machine.tick(2.1) == [Exit()]


def test_a_rank_that_joins_after_the_release_takes_it_back() -> None:
    machine = Machine(lease_s=60.0, now=0.0)
    machine.released()
    machine.joined(rank(0, world=1), 1.0)
    machine.left(1, 2.0)
    assert machine.tick(3.0) == []


def test_told_to_leave_it_first_writes_what_is_complete() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.told_to_leave()
    assert machine.tick(1.0) == []
    committed(machine, generation, 1)
    assert machine.tick(1.0) == [Exit()]


# --- peers that break the protocol -----------------------------------------------------------------------------------


def test_a_launcher_that_begins_a_save_is_refused_and_harms_nobody() -> None:
    a, launcher = rank(0, world=1), Client(50)
    machine = met(a, launcher)
    with pytest.raises(ProtocolError):
        machine.begun(launcher, begin())
    machine.left(launcher.id, 1.0)
    assert machine.generations == []
    assert grants(machine.begun(a, begin()))


def test_beginning_a_save_twice_is_refused_and_leaves_its_memory_alone() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    lanes = dict(generation.lanes)
    for again in (begin(), begin(step=99)):
        with pytest.raises(ProtocolError):
            machine.begun(a, again)
    assert (generation.lanes, machine.restorable()) == (lanes, [generation])


def test_staging_twice_is_refused_and_does_not_complete_a_save() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    machine.begun(b, begin())
    machine.staged(a, staged(a))
    with pytest.raises(ProtocolError):
        machine.staged(a, staged(a))
    (generation,) = digests(machine.staged(b, staged(b)))
    with pytest.raises(ProtocolError):
        machine.staged(b, staged(b))
    assert drains(machine.digested(generation))


def test_staging_what_was_not_begun_fails_the_save_and_frees_its_memory() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    actions = machine.staged(b, staged(b))
    assert [type(error) for each in (a, b) for error in failures(actions, each)] == [ProtocolError] * 2
    assert machine.generations == []


# --- several nodes ---------------------------------------------------------------------------------------------------


def broken(actions: list[Action]) -> list[tuple[str, int, type]]:
    return [(each.session, each.seq, type(each.error)) for each in actions if isinstance(each, Broken)]


def test_what_fails_here_is_told_to_other_nodes_and_what_failed_there_is_not_told_back() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    machine.begun(a, begin())
    assert broken(machine.abandoned(b, Abandon(seq=1, error=to_wire(FULL)), FULL)) == [(a.session, 1, StorageFull)]
    machine.begun(a, begin(2))
    actions = machine.broken(a.session, 2, FULL)
    assert [type(error) for error in failures(actions, a)] == [StorageFull]
    assert broken(actions) == []
    assert machine.broken(a.session, 3, FULL) == []  # nobody has come to it here
    assert [type(error) for error in failures(machine.begun(a, begin(3)), a)] == [StorageFull]


def test_a_node_that_is_asked_says_what_will_never_come() -> None:
    a, b = rank(0), rank(1)
    machine = met(a, b)
    assert machine.asked(a.session, 1, 10, by=a.session) == []  # its ranks have not come to it yet
    machine.begun(a, begin())
    assert machine.asked(a.session, 1, 10, by=a.session) == []
    machine.left(b.id, 1.0)
    assert broken(machine.asked(a.session, 1, 10, by=a.session)) == [(a.session, 1, RankFailed)]
    assert broken(machine.asked(a.session, 2, 10, by=a.session)) == [(a.session, 2, RankFailed)]
    machine.left(a.id, 2.0)
    assert broken(machine.asked(a.session, 2, 10, by=a.session)) == [(a.session, 2, RankFailed)]


def test_what_is_whole_here_ends_with_its_drain_whatever_another_node_says() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    assert machine.broken(a.session, 1, FULL) == []
    assert machine.by_id(generation.id) is generation


# --- the agent leaves ------------------------------------------------------------------------------------------------


def held(machine: Machine, client: Client) -> Generation:
    """A save to memory alone, hashed."""
    assert grants(machine.begun(client, Begin(seq=1, step=10, nbytes=100, plan_id="p", durable=False)))
    (generation,) = digests(machine.staged(client, staged(client)))
    machine.digested(generation)
    return generation


def test_a_step_that_memory_alone_holds_is_written_before_the_agent_leaves() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation = held(machine, a)
    machine.left(a.id, 1.0)
    assert machine.tick(30.0) == []
    (drain,) = drains(machine.tick(1.0 + LEASE_S))
    assert drain.generation is generation
    assert machine.tick(2.0 + LEASE_S) == []
    committed(machine, generation, 1)
    assert machine.tick(3.0 + LEASE_S) == [Exit()]


def test_an_agent_whose_last_step_cannot_be_written_leaves_all_the_same() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation = held(machine, a)
    machine.told_to_leave()
    assert drains(machine.tick(1.0))
    machine.drained(generation, FULL)
    assert machine.tick(2.0) == [Exit()]


# --- the base of deltas ----------------------------------------------------------------------------------------------


def full(machine: Machine, generation: Generation, slot: int) -> list[Action]:
    """It is durable, and deltas may be made on it."""
    return machine.drained(generation, Drained(slot, 200, 220, 0.5, keep=True))


def test_what_deltas_are_made_on_stays_while_newer_saves_come_and_go() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, drain = saved(machine, a)
    assert drain.on is None
    full(machine, first, 1)
    for seq in (2, 3, 4):
        later, drain = saved(machine, a, seq=seq, step=10 * seq)
        assert drain.on is first
        assert later.lanes[0] != first.lanes[0]
        committed(machine, later, seq)
    assert machine.generations == [first, later]


def test_a_base_takes_no_segment_away_from_saves_and_leaves_them_no_third_one() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a)
    full(machine, first, 1)
    saved(machine, a, seq=2, step=20)
    assert len(grants(machine.begun(a, begin(3, 30)))) == 1
    machine.staged(a, staged(a, 3, 30))
    assert grants(machine.begun(a, begin(4, 40))) == []


def test_a_new_base_takes_the_place_of_the_old_one() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a)
    full(machine, first, 1)
    second, _ = saved(machine, a, seq=2, step=20)
    full(machine, second, 2)
    assert machine.turns.base is second
    assert machine.generations == [second]


def test_where_memory_is_short_the_base_goes_before_a_save_fails() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a)
    full(machine, first, 1)
    second, _ = saved(machine, a, seq=2, step=20)
    committed(machine, second, 2)
    (grant,) = grants(machine.begun(a, begin(3, 30)))
    actions = machine.no_room(grant, FULL)
    (note,) = told(actions, a)
    assert "no deltas" in note.text
    assert machine.turns.base is None
    (again,) = grants(actions)
    assert (again.begin.seq, again.segment) == (3, first.lanes[0])
    (failure,) = failures(machine.no_room(again, FULL), a)
    assert isinstance(failure, StorageFull)


def test_a_base_that_is_being_read_goes_only_then() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a)
    full(machine, first, 1)
    second, drain = saved(machine, a, seq=2, step=20)
    assert drain.on is first
    (grant,) = grants(machine.begun(a, begin(3, 30)))
    assert grants(machine.no_room(grant, FULL)) == []
    assert first in machine.generations
    actions = committed(machine, second, 2)
    assert first not in machine.generations
    assert [each.begin.seq for each in grants(actions)] == [3]


def test_after_a_base_had_to_go_the_session_keeps_none() -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a)
    full(machine, first, 1)
    (grant,) = grants(machine.begun(a, begin(2, 20)))
    machine.no_room(grant, FULL)
    machine.staged(a, staged(a, 2, 20))
    (generation,) = [each for each in machine.generations if each.seq == 2]
    machine.digested(generation)
    full(machine, generation, 2)
    assert machine.turns.base is None


@pytest.mark.parametrize("heard_first", [True, False])
def test_what_a_rank_will_drain_by_itself_is_not_granted_to_it_again(heard_first: bool) -> None:
    a = rank(0, world=1)
    machine = met(a)
    first, _ = saved(machine, a, seq=1, step=10)
    assert grants(machine.begun(a, begin(2, 20)))
    (second,) = digests(machine.staged(a, staged(a, 2, 20)))
    machine.digested(second)
    assert not grants(machine.begun(a, begin(3, 30)))  # both are in use
    if heard_first:
        machine.disbanded("s")
    actions = machine.drained(first, AgentLost("the agent of another node is gone"))
    if not heard_first:
        machine.disbanded("s")
    assert not grants([*actions, *machine.tick(0.0)])
    assert machine.by_id(first.id) is first
    assert machine.by_id(second.id) is second
    machine.left(a.id, 1.0)
    again = rank(0, session="t", world=1)
    machine.joined(again, 2.0)
    assert grants(machine.begun(again, begin(1, 20)))
