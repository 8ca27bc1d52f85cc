"""The agreement to stop through the board: all ranks stop at one step, whatever each was doing when agents died."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from conftest import Place
from perdure.checkpoint.noted_stop import NotedStop
from perdure.errors import DeadlineExceeded, LinkLost
from perdure.events import Fact
from perdure.progress import Page, StopAgreement


class Board:
    """Notes of one process; each access takes a moment of random length."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self.notes: dict[str, bytes] = {}
        self.gone = False
        self.looks = 0
        self._dice = dice

    def leave(self, name: str, text: bytes) -> None:
        self._take_a_moment()
        self.notes[name] = text

    def read(self, name: str) -> bytes | None:
        self._take_a_moment()
        return self.notes.get(name)

    def read_all(self, names: Sequence[str]) -> list[bytes] | None:
        self._take_a_moment()
        found = [self.notes[name] for name in names if name in self.notes]
        return found if len(found) == len(names) else None

    def _take_a_moment(self) -> None:
        self.looks += 1
        if self.gone:
            raise LinkLost("the board is gone")
        if self._dice is not None:
            time.sleep(self._dice.random() * 1e-4)


def one(
    board: Board,
    rank: int,
    *,
    world: int = 2,
    page: Page | None = None,
    has_agents: Callable[[], bool] = lambda: False,
    said: list[Fact] | None = None,
) -> NotedStop:
    agreement = None
    if page is not None:
        page.rank(0).claim(rank=rank)
        agreement = StopAgreement(page, local_rank=0, arbitrates=False, gone=lambda: not has_agents())
    return NotedStop(
        board,
        session="s",
        rank=rank,
        world=world,
        agreement=agreement,
        page=page,
        has_agents=has_agents,
        tell=lambda fact, everywhere: None if said is None else said.append(fact),
    )


def run_apart(ranks: Sequence[Callable[[], int]]) -> list[int]:
    """What each of ``ranks`` returns, all at once on threads."""
    found: dict[int, int] = {}

    def run(number: int) -> None:
        found[number] = ranks[number]()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == len(ranks), "a rank hangs"
    return [found[number] for number in range(len(ranks))]


@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_never_wait_for_each_other_stop_at_one_step(seed: int) -> None:
    dice = random.Random(seed)
    board, world = Board(dice), 4
    asked_rank, asked_at = dice.randrange(world), dice.randrange(1, 20)
    slow = [dice.random() * 2e-3 for _ in range(world)]

    def train(rank: int) -> int:
        stop = one(board, rank, world=world)
        for step in range(1, 10_000):
            time.sleep(slow[rank])
            if stop.at_cut(step, asked=rank == asked_rank and step >= asked_at):
                return step
        return -1

    steps = run_apart([lambda rank=rank: train(rank) for rank in range(world)])  # type: ignore[misc]
    assert len(set(steps)) == 1
    assert steps[0] > asked_at


def test_nobody_is_proposed_a_step_before_all_ranks_look_at_the_board() -> None:
    board = Board()
    agents = [True]
    with Page.create(1) as page:
        early, late = one(board, 0), one(board, 1, page=page, has_agents=lambda: agents[0])
        assert [early.at_cut(step, asked=True) for step in (1, 2)] == [False, False]
        assert [late.at_cut(step, asked=False) for step in (1, 2)] == [False, False]
        agents[0] = False
        assert not late.at_cut(3, asked=False)
        assert [early.at_cut(step, asked=True) for step in (3, 4)] == [False, False]
        assert not late.at_cut(4, asked=False)
        assert early.at_cut(5, asked=True)
        assert late.at_cut(5, asked=False)


def test_with_agents_the_board_is_not_looked_at() -> None:
    board = Board()
    with Page.create(1) as page:
        stop = one(board, 0, page=page, has_agents=lambda: True)
        assert not any(stop.at_cut(step, asked=True) for step in range(1, 9))
        page.proposed = page.firm = 9
        assert board.looks == 0
        assert stop.at_cut(9, asked=True)
        assert board.notes["s/stop/stop"] == b"[9,true]"


@pytest.mark.parametrize("told", [0, 1])
def test_a_step_that_agents_told_one_node_only_holds_for_all(told: int) -> None:
    """The other node's agent died when it had been proposed to it."""
    board = Board(random.Random(0))
    with Page.create(1) as mine, Page.create(1) as theirs:
        pages = [mine, theirs]
        for page in pages:
            page.proposed = 6
        pages[told].firm = 6

        def train(rank: int) -> int:
            stop = one(board, rank, page=pages[rank], has_agents=lambda: rank == told)
            for step in range(4, 20):
                if rank == told:
                    time.sleep(0.05)
                if stop.at_cut(step, asked=rank != told):
                    return step
            return -1

        assert run_apart([lambda: train(0), lambda: train(1)]) == [6, 6]


def test_a_step_that_agents_proposed_and_never_made_firm_is_forgotten() -> None:
    board = Board()
    with Page.create(1) as mine, Page.create(1) as theirs:
        pages = [mine, theirs]
        mine.proposed = 6  # the look at the other node did not come through

        def train(rank: int) -> int:
            stop = one(board, rank, page=pages[rank])
            for step in range(6, 10_000):
                time.sleep(1e-3)
                if stop.at_cut(step, asked=rank == 1):
                    return step
            return -1

        began = time.monotonic()
        found = run_apart([lambda: train(0), lambda: train(1)])
        assert found[0] == found[1]
        assert time.monotonic() - began < 9.0, "waited for a word that nobody can give"


def test_a_rank_past_the_step_at_which_others_stop_says_so() -> None:
    board = Board()
    stop = one(board, 1)
    assert not stop.at_cut(7, asked=False)
    board.notes["s/stop/stop"] = b"[6,true]"
    with pytest.raises(DeadlineExceeded, match="the others stop after step 6, and this rank has completed 8"):
        stop.at_cut(8, asked=False)


def test_without_a_board_a_rank_goes_on_until_it_is_asked() -> None:
    board, said = Board(), list[Fact]()
    stop = one(board, 1, said=said)
    assert not stop.at_cut(1, asked=False)
    board.gone = True
    assert [stop.at_cut(step, asked=False) for step in (2, 3)] == [False, False]
    assert sum("this rank can agree with others on where to stop no more" in str(fact) for fact in said) == 1
    looks = board.looks
    with pytest.raises(LinkLost, match="cannot agree with the other ranks on a step: the board is gone"):
        stop.at_cut(4, asked=True)
    assert board.looks == looks, "a board that is gone may take its time"


def test_a_rank_whose_board_is_gone_says_so_and_exits_as_asked(place: Place) -> None:
    argv = ("--steps", "400", "--every", "400", "--step-s", "0.08", "--no-agent", "--no-store")
    ranks = place.start(*argv, nodes=("a", "b"))
    ranks.await_line("^D 4 ", ranks=(0, 1))
    for rank in (0, 1):
        ranks.kill(rank, signal.SIGTERM)
    assert ranks.wait() == [143, 143], ranks.text()
    for rank in (0, 1):
        assert any("saves nothing: it cannot agree with the other ranks" in line for line in ranks.said(rank))
