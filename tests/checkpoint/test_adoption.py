"""Which agent makes durable what which ranks had saved, when a new session goes on from memory alone."""

from __future__ import annotations

from perdure.checkpoint.adoption import adoption
from perdure.checkpoint.lineup import Candidate, RankView
from perdure.checkpoint.messages import Adopt, Generation

STEP = Candidate(6, None, "s", 2)


def held(id: int, *, own: tuple[int, ...] = (), kept: tuple[int, ...] = (), world: int = 3) -> list[Generation]:
    """What an agent says of step 6."""
    ranks = sorted((*own, *kept))
    return [
        Generation(id=id, session="s", seq=2, step=6, epoch=4, world=world, ranks=ranks, slot=None, kept=list(kept))
    ]


def plans(*nodes: list[Generation]) -> list[Adopt | None]:
    """What each of ``nodes`` is told; one rank on each."""
    views = [RankView(node=number, generations=found) for number, found in enumerate(nodes)]
    return [adoption(views, STEP, node=number, follows=3) for number in range(len(nodes))]


def writers(found: list[Adopt | None], nodes: list[list[Generation]]) -> list[list[int]]:
    """The ranks whose packs each node writes."""
    wrote = []
    for adopt, generations in zip(found, nodes, strict=True):
        assert adopt is not None
        own = generations[0].own if generations and generations[0].id == adopt.generation else []
        wrote.append(sorted([*own, *adopt.kept]))
    return wrote


def test_each_agent_writes_its_own_where_nobody_is_lost() -> None:
    nodes = [held(1, own=(0,), kept=(2,)), held(5, own=(1,), kept=(0,)), held(9, own=(2,), kept=(1,))]
    found = plans(*nodes)
    assert [each.generation for each in found if each] == [1, 5, 9]
    assert writers(found, nodes) == [[0], [1], [2]]


def test_who_keeps_a_lost_nodes_packs_writes_them_and_a_new_node_takes_part_with_nothing() -> None:
    nodes: list[list[Generation]] = [held(1, own=(0,), kept=(2,)), [], held(9, own=(2,), kept=(1,))]
    found = plans(*nodes)
    assert writers(found, nodes) == [[0], [], [1, 2]]
    new = found[1]
    assert new is not None
    assert new.generation < -1000
    assert (new.session, new.seq, new.step, new.epoch, new.base_slot) == ("s", 2, 6, 4, 3)


def test_a_node_that_keeps_copies_and_saved_nothing_itself_writes_them() -> None:
    nodes = [held(-3, kept=(0, 1)), held(4, own=(2,), kept=(1,))]
    found = plans(*nodes)
    assert found[0] is not None
    assert found[0].kept == [0, 1]
    assert found[0].generation != -3  # that is the copy's number, which goes when the copy is replaced
    assert found[1] is not None
    assert found[1].kept == []


def test_every_rank_is_written_once_whoever_is_lost() -> None:
    full = [held(1, own=(0,), kept=(2,)), held(5, own=(1,), kept=(0,)), held(9, own=(2,), kept=(1,))]
    for lost in range(3):
        nodes = [[] if number == lost else each for number, each in enumerate(full)]
        assert sorted(rank for each in writers(plans(*nodes), nodes) for rank in each) == [0, 1, 2]


def test_what_is_not_whole_is_nobodys_to_write() -> None:
    assert plans(held(1, own=(0,)), held(5, own=(1,))) == [None, None]
