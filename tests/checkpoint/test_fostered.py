"""A session goes on from a step that its agent makes durable for nodes that are gone, with packs of its own or none."""

from __future__ import annotations

from msgspec.structs import replace
from test_generations import begin, broken, committed, digests, drains, met, rank, saved, staged, told

from perdure.checkpoint.generations import Machine
from perdure.checkpoint.messages import Adopt, Adopted, Terms
from perdure.checkpoint.vocabulary import Broken, Client, Drained, Fostered, Phase
from perdure.errors import AgentLost, BlobMissing, StorageFull, Superseded

ADOPT = Adopt(generation=-7, session="s", seq=2, step=6, epoch=1, base_slot=3)
KEPT = Fostered(epoch=1, base=3, ranks=(1,), said=((1, {"w": "d"}),), raw_nbytes=10, terms=Terms(meta={"a": 1}))
NOTHING = Fostered(epoch=1, base=3)


def new_session(machine: Machine) -> Client:
    client = rank(0, world=1, session="t", client=11)
    machine.joined(client, 2.0)
    return client


def test_what_is_kept_for_a_lost_node_is_drained_where_nothing_of_its_own_is() -> None:
    machine = met()
    client = new_session(machine)
    (drain,) = drains(machine.adopted(client, ADOPT, KEPT))
    generation = drain.generation
    assert (drain.base, generation.epoch, generation.by, generation.name) == (3, 1, "t", ("s", 2))
    assert (generation.said, generation.raw_nbytes, generation.terms) == (KEPT.said, 10, KEPT.terms)
    assert machine.restorable() == []  # its packs are lent by those who keep them
    assert machine.turns.drains_for("t")
    assert told(committed(machine, generation, 4), client) == [Adopted(generation=-7, slot=4, error=None)]


def test_a_node_that_holds_nothing_takes_part_and_its_heir_follows_the_slot() -> None:
    machine = met()
    client = new_session(machine)
    (drain,) = drains(machine.adopted(client, ADOPT, NOTHING))
    assert drain.generation.terms is None
    machine.begun(client, begin(1, 9))
    (heir,) = digests(machine.staged(client, staged(client, 1, 9, epoch=2, base_generation=-7)))
    machine.digested(heir)
    (after,) = drains(committed(machine, drain.generation, 4))
    assert (after.generation, after.base) == (heir, 4)


def test_one_whose_epoch_is_over_is_made_durable_under_the_new_one_before_its_heir() -> None:
    machine = met()
    client = new_session(machine)
    (drain,) = drains(machine.adopted(client, ADOPT, NOTHING))
    assert told(machine.drained(drain.generation, Superseded("epoch 2 owns this run")), client) == []
    machine.begun(client, begin(1, 9))
    (heir,) = digests(machine.staged(client, staged(client, 1, 9, epoch=2, base_generation=-7)))
    machine.digested(heir)
    assert machine.by_id(-7) is drain.generation
    assert (drain.generation.epoch, drain.generation.phase) == (2, Phase.DRAINING)
    (after,) = drains(committed(machine, drain.generation, 4))
    assert (after.generation, after.base) == (heir, 4)


def test_own_packs_and_those_of_a_lost_node_are_drained_together() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.drained(generation, AgentLost("node 1 is gone"))
    machine.left(a.id, 1.0)
    client = new_session(machine)
    adopt = Adopt(generation=generation.id, session=generation.session, seq=generation.seq, kept=[1])
    (drain,) = drains(machine.adopted(client, adopt, KEPT))
    assert drain.generation is generation
    assert [who for who, _ in generation.said] == [0, 1]


def test_a_session_that_goes_on_while_the_one_before_still_tries_gets_its_turn() -> None:
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    machine.left(a.id, 1.0)
    client = new_session(machine)
    adopt = Adopt(generation=generation.id, session=generation.session, seq=generation.seq)
    assert drains(machine.adopted(client, adopt, NOTHING)) == []  # it is being drained
    (drain,) = drains(machine.drained(generation, AgentLost("node 1 is gone")))
    assert drain.generation is generation
    assert told(committed(machine, generation, 4), client) == [Adopted(generation=generation.id, slot=4, error=None)]


def test_a_drain_that_ends_for_the_session_before_is_told_to_the_nodes_of_the_one_that_went_on() -> None:
    for result in (Drained(4, 200, 220, 0.5), StorageFull("no space left")):
        old = rank(0, world=1)
        machine = met(old)
        generation, _ = saved(machine, old)
        client = new_session(machine)
        machine.partnered.add("t")
        assert drains(machine.adopted(client, replace(ADOPT, generation=generation.id, seq=1), NOTHING)) == []
        actions = machine.drained(generation, result)
        (drain,) = drains(actions)
        assert (drain.generation, told(actions, client), machine.turns.drains_for("t")) == (generation, [], True)
        assert told(committed(machine, generation, 4), client) == [
            Adopted(generation=generation.id, slot=4, error=None)
        ]


def test_what_is_kept_for_a_lost_node_waits_for_the_drain_of_a_save_before_it() -> None:
    """It has no packs of this node, and so nothing that it went on from."""
    a = rank(0, world=1)
    machine = met(a)
    generation, _ = saved(machine, a)
    client = new_session(machine)
    assert drains(machine.adopted(client, ADOPT, KEPT)) == []
    (drain,) = drains(committed(machine, generation, 4))
    assert (drain.generation.id, drain.base) == (-7, 3)


def test_a_copy_that_is_gone_ends_the_wait_of_all() -> None:
    machine = met()
    client = new_session(machine)
    actions = machine.not_adopted(client, ADOPT, BlobMissing("the copy of what rank 1 saved is not in memory any more"))
    (message,) = told(actions, client)
    assert isinstance(message, Adopted)
    assert message.slot is None
    (gone,) = [each for each in actions if isinstance(each, Broken)]
    assert (gone.session, gone.of, gone.seq) == ("t", "s", 2)
    assert broken(machine.asked("s", 2, 6, by="t")) == [("s", 2, BlobMissing)]


def test_a_node_is_not_given_up_before_its_rank_has_said_what_it_went_on_from() -> None:
    machine = met()
    client = new_session(machine)
    assert machine.asked("s", 2, 6, by="t") == []
    machine.left(client.id, 3.0)
    assert broken(machine.asked("s", 2, 6, by="t"))


def held(machine: Machine, client: Client, seq: int) -> None:
    """A save to memory alone, whole and hashed."""
    machine.begun(client, replace(begin(seq, seq), durable=False))
    (generation,) = digests(machine.staged(client, staged(client, seq, seq)))
    machine.digested(generation)


def test_a_step_in_memory_alone_stays_until_the_segment_of_it_is_wanted() -> None:
    """The one after it may not be whole on other nodes yet."""
    a = rank(0, world=1)
    machine = met(a)
    held(machine, a, 1)
    held(machine, a, 2)
    assert [each.seq for each in machine.restorable()] == [2, 1]
    machine.begun(a, replace(begin(3, 3), durable=False))
    assert [each.seq for each in machine.restorable()] == [2]
