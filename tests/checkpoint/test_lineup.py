"""Which steps can be restored and in which order, from what ranks see in memory and what the store holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint.lineup import Candidate, RankView, SlotFacts, line_up
from perdure.checkpoint.messages import Generation


def generation(
    seq: int,
    *,
    step: int | None = None,
    epoch: int = 1,
    slot: int | None = None,
    session: str = "s",
    world: int = 2,
    ranks: tuple[int, ...] | None = None,
) -> Generation:
    return Generation(
        id=seq,
        session=session,
        seq=seq,
        step=seq * 10 if step is None else step,
        epoch=epoch,
        world=world,
        ranks=list(range(world) if ranks is None else ranks),
        slot=slot,
    )


def fact(slot: int, step: int, epoch: int) -> SlotFacts:
    return SlotFacts(slot, step, epoch, "committed", step // 10)


def views(*of_ranks: list[Generation], chain: list[SlotFacts] | None = None) -> list[RankView]:
    return [RankView(generations=held, chain=chain if rank == 0 else None) for rank, held in enumerate(of_ranks)]


def steps(found: list[Candidate]) -> list[tuple[int, bool]]:
    return [(each.step, each.in_memory) for each in found]


def test_an_empty_run_has_no_candidates() -> None:
    assert line_up(views([], [], chain=[])) == []


def test_commits_come_in_the_order_of_the_branch_and_not_of_their_steps() -> None:
    chain = [fact(7, 12, 2), fact(3, 11, 2), fact(1, 30, 1)]
    found = line_up(views([], chain=chain))
    assert [(each.step, each.slot, each.in_memory) for each in found] == [
        (12, 7, False),
        (11, 3, False),
        (30, 1, False),
    ]


def test_a_commit_that_is_still_in_memory_is_taken_from_there() -> None:
    held = [generation(2, slot=2)]
    found = line_up(views(held, held, chain=[SlotFacts(2, 20, 1, "s", 2), fact(1, 10, 1)]))
    assert found == [Candidate(20, 2, "s", 2), Candidate(10, 1, None, None)]


def test_what_is_in_memory_and_not_committed_comes_first_if_it_is_newer() -> None:
    held = [generation(3), generation(2, slot=2)]
    found = line_up(views(held, held, chain=[SlotFacts(2, 20, 1, "s", 2)]))
    assert found == [Candidate(30, None, "s", 3), Candidate(20, 2, "s", 2)]


def test_what_was_committed_to_a_store_that_came_back_older_is_newer_in_memory() -> None:
    held = [generation(3, slot=3)]
    found = line_up(views(held, held, chain=[fact(1, 10, 1)]))
    assert found == [Candidate(30, None, "s", 3), Candidate(10, 1, None, None)]


def test_another_save_in_the_slot_of_a_commit_that_was_lost_is_not_taken_for_it() -> None:
    held = [generation(2, slot=2)]
    assert line_up(views(held, held, chain=[fact(2, 20, 2)])) == [Candidate(20, 2, None, None)]


def test_without_a_commit_memory_alone_counts() -> None:
    held = [generation(3), generation(2)]
    assert steps(line_up(views(held, held, chain=[]))) == [(30, True), (20, True)]


def test_what_is_older_than_the_head_is_no_candidate() -> None:
    """Of an older epoch (a new session has committed since), or an earlier save of the same."""
    old_epoch, old_save, head = generation(9, step=900, epoch=1), generation(1, step=10, epoch=2), fact(5, 50, 2)
    for held in (old_epoch, old_save):
        assert steps(line_up(views([held], [held], chain=[head]))) == [(50, False)]


def test_a_lower_step_saved_later_in_the_same_epoch_is_newer() -> None:
    held = [generation(9, step=30, epoch=2)]
    assert steps(line_up(views(held, held, chain=[fact(5, 50, 2)]))) == [(30, True), (50, False)]


def test_a_commit_of_which_the_agent_was_not_told_is_taken_from_memory() -> None:
    held = [generation(5, epoch=2, session="s")]
    chain = [SlotFacts(5, 50, 2, "s", 5)]
    assert line_up(views(held, held, chain=chain)) == [Candidate(50, 5, "s", 5)]


def test_after_a_rollback_the_newer_epoch_counts_and_not_the_higher_step() -> None:
    held = [generation(1, step=12, epoch=3, session="t")]
    found = line_up(views(held, held, chain=[fact(5, 50, 2)]))
    assert steps(found) == [(12, True), (50, False)]


def test_a_generation_committed_on_another_branch_is_no_candidate() -> None:
    held = [generation(4, step=40, slot=4)]
    assert steps(line_up(views(held, held, chain=[fact(9, 15, 2), fact(1, 10, 1)]))) == [
        (15, False),
        (10, False),
    ]


def test_what_one_rank_cannot_see_is_in_memory_for_nobody() -> None:
    mine, theirs = generation(3), generation(3, session="other")
    for others in ([], [theirs], [generation(2)]):
        assert line_up(views([mine], others, chain=[])) == []


def test_what_the_agents_do_not_hold_whole_does_not_count() -> None:
    for ranks in ((0,), (1,), (0, 1), ()):
        held = [generation(3, world=3, ranks=ranks)]
        assert line_up(views(held, held, chain=[])) == []
    whole = [generation(3, world=3)]
    assert steps(line_up(views(whole, whole, chain=[]))) == [(30, True)]


def test_two_saves_of_one_step_are_two_candidates_the_later_first() -> None:
    held = [generation(2, step=5), generation(1, step=5)]
    assert [each.seq for each in line_up(views(held, held, chain=[]))] == [2, 1]


GENERATIONS = st.lists(
    st.builds(
        generation,
        st.integers(1, 5),
        step=st.integers(0, 5),
        epoch=st.integers(1, 3),
        slot=st.none() | st.integers(1, 6),
        session=st.sampled_from(["s", "t"]),
        ranks=st.none() | st.just((0,)),
    ),
    max_size=5,
    unique_by=lambda each: (each.session, each.seq),
)
CHAINS = st.lists(st.integers(1, 6), unique=True).map(
    lambda slots: [
        SlotFacts(slot, slot % 4, 1 + slot // 3, "s" if slot % 2 else "u", slot) for slot in sorted(slots, reverse=True)
    ]
)


@given(GENERATIONS, st.lists(st.sets(st.integers(0, 4)), max_size=3), CHAINS)
@settings(max_examples=300, deadline=None)
def test_every_candidate_can_be_had_by_all_ranks_and_no_newer_one_is_left_out(
    held: list[Generation], missing: list[set[int]], chain: list[SlotFacts]
) -> None:
    others = [[each for i, each in enumerate(held) if i not in gone] for gone in missing]
    seen = views(held, *others, chain=chain)
    found = line_up(seen)
    assert found == line_up(seen)
    everywhere = [each for each in held if each.ranks == [0, 1] and all(each in other for other in others)]
    assert [each.slot for each in found if each.slot is not None] == [each.slot for each in chain]
    for each in found:
        if each.in_memory:
            assert any((g.session, g.seq) == (each.session, each.seq) for g in everywhere)
        else:
            assert each.slot is not None
    head = chain[0] if chain else None
    committed = {(each.session, each.seq) for each in chain}
    newer = [
        g
        for g in everywhere
        if (g.slot is None or head is None or g.slot > head.slot)
        and (g.session, g.seq) not in committed
        and (head is None or (g.epoch, g.seq) > (head.epoch, head.seq))
    ]
    first = [each for each in found if each.slot is None]
    assert found[: len(first)] == first
    assert [(each.session, each.seq) for each in first] == [
        (g.session, g.seq) for g in sorted(newer, key=lambda g: (g.epoch, g.seq, g.step, g.session), reverse=True)
    ]
