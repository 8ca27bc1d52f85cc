"""A remote store behind the one that commits: steps are carried there, and come back from there when home is lost."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from conftest import Place, await_that, flip
from perdure.checkpoint.config import Deadlines
from perdure.clock import SystemClock
from perdure.errors import BlobMissing, CallError, DeadlineExceeded, PerdureError, StorageError
from perdure.events import Fact, Log
from perdure.store import Disk, Run
from perdure.store.branch import standing
from perdure.store.faults import Delay, Fail, Faults, Rule
from perdure.upkeep.verifying import verify

SHORT = Deadlines(stall_s=20.0, commit_s=20.0, agent_s=20.0)


class Facts(Log):
    """What a checkpointer tells, kept."""

    def __init__(self) -> None:
        super().__init__(None)
        self.facts: list[Fact] = []

    def emit(self, fact: Fact) -> None:
        self.facts.append(fact)

    record = emit

    @property
    def text(self) -> str:
        return "\n".join(map(str, self.facts))


class Gate(SystemClock):
    """Time that stands still until the test opens the gate."""

    def __init__(self) -> None:
        self.opened, self.met = threading.Event(), threading.Event()

    def sleep(self, seconds: float) -> None:
        self.met.set()
        assert self.opened.wait(20.0), "the test forgot its gate"


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate()
    yield one
    one.opened.set()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., perdure.Checkpointer]]:
    """Makes checkpointers of the run at ``home`` with its copy at ``far``; rules are of the copy's store."""
    made: list[perdure.Checkpointer] = []

    def one(*rules: Rule, home: str = "home", **options: Any) -> perdure.Checkpointer:
        options = {"tiers": [f"file://{tmp_path}/far"], "log": Facts(), "deadlines": SHORT} | options
        ckpt = perdure.Checkpointer(tmp_path / home, agent=False, **options)
        if rules:
            spoil(ckpt, *rules)
        made.append(ckpt)
        return ckpt

    yield one
    for ckpt in made:
        ckpt.close(leaving_within_s=1.0)


def spoil(ckpt: perdure.Checkpointer, *rules: Rule) -> None:
    """Put a store with ``rules`` in the place of the copy's."""
    assert ckpt._remote is not None
    object.__setattr__(ckpt._remote, "store", Faults(ckpt._remote.store, rules))


def state(seed: int) -> dict[str, Any]:
    dice = torch.Generator().manual_seed(seed)
    return {"w": torch.rand(1000, generator=dice), "frozen": torch.ones(3 << 18), "step": seed}


def check_restores(ckpt: perdure.Checkpointer, step: int, *, tier: str, asked: int | None = None) -> str:
    """The step comes back bit for bit, from the tier; what was told is returned."""
    tree = state(0) | {"frozen": torch.zeros(3 << 18)}
    assert ckpt.restore(tree, step=asked) == step
    wanted = state(step)
    assert torch.equal(tree["w"], wanted["w"])
    assert torch.equal(tree["frozen"], wanted["frozen"])
    log: Any = ckpt.log
    restored = [fact for fact in log.facts if isinstance(fact, perdure.events.Restored)][-1]
    assert tier in restored.tiers, restored
    return str(restored)


def steps_at(folder: Path) -> list[int]:
    """The steps of the run there, all of which verify."""
    report = verify(Disk(folder), every=True)
    assert report.damages == []
    return [commit.step for commit in standing(Run.open(Disk(folder), create=False))][::-1]


def test_a_step_that_has_reached_remote_is_one_of_a_run_of_its_own(make: Any, tmp_path: Path) -> None:
    ckpt = make()
    for step in (1, 2):
        ckpt.save(step, state(step)).reached("remote")
    assert steps_at(tmp_path / "far") == steps_at(tmp_path / "home") == [1, 2]
    assert "committed step 2 to remote" in ckpt.log.text
    direct = make(home="far", tiers=())
    check_restores(direct, 2, tier="disk")
    assert perdure.load(tmp_path / "far", step=1)["w"].equal(state(1)["w"])


def test_without_a_remote_there_is_no_such_tier(make: Any) -> None:
    ckpt = make(tiers=())
    with pytest.raises(CallError, match=r"tiers=\["):
        ckpt.save(1, state(1), tier="remote")
    with pytest.raises(CallError, match=r"no remote tier: give its store as tiers"):
        ckpt.save(1, state(1)).reached("remote")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tiers": ["file:///a", "file:///b"]}, "one remote store"),
        ({"tiers": "home"}, "the store that commits"),
        ({"remote_every": 0}, "a whole number of steps"),
        ({"remote_bytes_per_s": 0}, "more than 0"),
        ({"tiers": (), "remote_every": 3}, "name it"),
        ({"tiers": "ram://far", "agent": True}, "of one process alone"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_touched(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    if options.get("tiers") == "home":
        options = options | {"tiers": tmp_path / "home"}
    options = {"tiers": str(tmp_path / "far"), "agent": False} | options
    with pytest.raises(CallError, match=said):
        perdure.Checkpointer(tmp_path / "home", **options)
    assert list(tmp_path.iterdir()) == []


def test_steps_are_carried_by_their_rhythm_or_when_they_are_asked_for(make: Any, tmp_path: Path) -> None:
    ckpt = make(remote_every=3)
    saves = [ckpt.save(step, state(step), tier="remote" if step == 5 else "disk") for step in range(1, 8)]
    for step in (3, 5, 6):
        saves[step - 1].reached("remote")
    with pytest.raises(CallError, match="takes every 3 steps"):
        saves[3].reached("remote")
    ckpt.close()
    assert steps_at(tmp_path / "far") == [3, 5, 6]


def test_a_slow_copy_gets_the_newest_and_delays_no_save(make: Any, tmp_path: Path, gate: Gate) -> None:
    ckpt = make(Rule("put", Delay(1.0, gate), match="packs/*"), keep="last=1")
    first = ckpt.save(1, state(1))
    first.committed()
    assert gate.met.wait(20.0)
    saves = [ckpt.save(step, state(step)) for step in range(2, 6)]
    for saved in saves:
        saved.committed()  # though nothing gets any further
    with pytest.raises(DeadlineExceeded):
        first.reached("remote", 0.1)
    gate.opened.set()
    first.reached("remote")  # retention has spared it
    saves[-1].reached("remote")
    with pytest.raises(BlobMissing, match="step 3 was passed over"):
        saves[1].reached("remote")
    ckpt.close()
    assert steps_at(tmp_path / "home") == [1, 5]  # the first goes with the next save
    assert steps_at(tmp_path / "far") == [5]


def test_a_copy_that_is_away_costs_no_save_is_told_once_and_gets_what_was_asked_for(make: Any, tmp_path: Path) -> None:
    away = StorageError("the server is away")
    ckpt = make(remote_every=2)
    ckpt.engage()
    spoil(ckpt, Rule("size", Fail(away), times=2))
    saves = []
    for step in range(1, 5):
        saves.append(ckpt.save(step, state(step)))
        saves[-1].committed()
        if step == 2:
            with pytest.raises(StorageError, match="server is away"):
                saves[-1].reached("remote")
    late = [ckpt.save(step, state(step)) for step in (5, 6, 7, 8)]
    late[-1].reached("remote")
    saves[1].reached("remote")
    ckpt.close()
    assert ckpt.log.text.count("the server is away") == 1
    assert "tried again after the next save" in ckpt.log.text
    assert steps_at(tmp_path / "far") == [2, 4, 6, 8]


def test_home_that_is_lost_wholly_comes_back_as_the_same_run(make: Any, tmp_path: Path) -> None:
    ckpt = make(remote_every=2)
    for step in range(1, 6):
        ckpt.save(step, state(step)).committed()
    ckpt.close()
    before = Run.open(Disk(tmp_path / "far"), create=False).marker
    shutil.rmtree(tmp_path / "home")

    ckpt = make(remote_every=2)
    told = check_restores(ckpt, 4, tier="remote")
    assert "is not there" not in told
    assert "goes on as the run that lies in" in ckpt.log.text
    assert (ckpt.steps(), ckpt.latest()) == ([2, 4], 4)
    for step in (5, 6):
        ckpt.save(step, state(step)).committed()
    ckpt.close()
    assert Run.open(Disk(tmp_path / "home"), create=False).marker == before
    assert steps_at(tmp_path / "home") == [5, 6]
    assert steps_at(tmp_path / "far") == [2, 4, 6]
    check_restores(make(), 6, tier="disk")
    ckpt = make()
    check_restores(ckpt, 2, tier="remote", asked=2)  # though home gave it up
    tree = state(0) | {"frozen": torch.zeros(3 << 18)}
    assert ckpt.restore(tree, slot=4) == 4
    assert tree["w"].equal(state(4)["w"])
    with pytest.raises(BlobMissing, match="pruned"):
        ckpt.restore(tree, slot=3)


def test_an_empty_home_with_a_copy_that_cannot_be_read_is_not_begun_from_scratch(make: Any, tmp_path: Path) -> None:
    ckpt = make()
    ckpt.save(1, state(1)).reached("remote")
    ckpt.close()
    shutil.rmtree(tmp_path / "home")
    with pytest.raises(StorageError, match="nobody knows whether there is a step to go on from"):
        make(Rule("size", Fail(StorageError("away")), times=None)).restore(state(0))
    ckpt = make()
    assert ckpt.restore(state(0)) == 1
    ckpt.close()
    with pytest.raises(StorageError, match="and no step any more"):  # home has caught up, and holds none yet
        make(Rule("size", Fail(StorageError("away")), times=None)).restore(state(0))


def test_another_run_in_the_remote_place_is_refused(make: Any, tmp_path: Path) -> None:
    other = make(home="far", tiers=())
    other.save(9, state(9)).committed()
    mine = make(home="home", tiers=())
    mine.save(1, state(1)).committed()
    with pytest.raises(CallError, match="another run"):
        make().restore(state(0))


def test_what_was_trained_on_from_the_copy_is_left_alone_by_home(make: Any, tmp_path: Path) -> None:
    ckpt = make()
    ckpt.save(1, state(1)).reached("remote")
    ckpt.close()
    direct = make(home="far", tiers=())
    check_restores(direct, 1, tier="disk")
    direct.save(2, state(2)).committed()
    direct.close()
    old = make(tiers=())
    old.save(3, state(3)).committed()  # home did not know
    old.close()
    ckpt = make()
    check_restores(ckpt, 3, tier="disk")
    saved = ckpt.save(4, state(4))
    saved.committed()
    with pytest.raises(PerdureError, match="trained on apart"):
        saved.reached("remote")
    ckpt.save(5, state(5)).committed()
    ckpt.close()
    assert ckpt.log.text.count("nothing is carried") <= 3
    assert steps_at(tmp_path / "far") == [1, 2]


def test_home_catches_up_with_what_was_trained_from_the_copy(make: Any, tmp_path: Path) -> None:
    ckpt = make()
    ckpt.save(1, state(1)).reached("remote")
    ckpt.close()
    direct = make(home="far", tiers=())
    direct.restore(state(0))
    direct.save(2, state(2)).committed()
    direct.close()
    ckpt = make()
    check_restores(ckpt, 2, tier="remote")
    ckpt.save(3, state(3)).reached("remote")
    assert (steps_at(tmp_path / "home"), steps_at(tmp_path / "far")) == ([1, 3], [1, 2, 3])


def newest_pack(folder: Path) -> Path:
    run = Run.open(Disk(folder), create=False)
    head = run.head()
    assert head is not None
    part = run.read_part(head.parts[0])
    mine = max(pack.name for pack in part.packs)
    return folder / mine


def newest_part(folder: Path) -> Path:
    head = Run.open(Disk(folder), create=False).head()
    assert head is not None
    return folder / head.parts[0].name


def newest_slot(folder: Path) -> Path:
    return max((folder / "slots").iterdir())


@pytest.mark.parametrize("what", [newest_pack, newest_part, newest_slot])
@pytest.mark.parametrize("how", ["rots", "is deleted"])
def test_what_is_bad_or_missing_at_home_comes_from_the_copy_of_the_same_step(
    make: Any, tmp_path: Path, what: Callable[[Path], Path], how: str
) -> None:
    ckpt = make()
    for step in (1, 2):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    path = what(tmp_path / "home")
    path.unlink() if how == "is deleted" else flip(path, at=0.9)
    ckpt = make()
    lost = what is newest_slot and how == "is deleted"  # home caught up with its copy
    told = check_restores(ckpt, 2, tier="remote" if what is newest_pack or lost else "disk")
    if what is not newest_slot:
        assert "took the copy on remote" in told
        assert path.name in told


def test_what_is_bad_in_both_falls_to_the_step_before(make: Any, tmp_path: Path) -> None:
    ckpt = make()
    for step in (1, 2):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    for folder in ("home", "far"):
        flip(newest_pack(tmp_path / folder), at=0.9)
    assert "step 2 could not be used" in check_restores(make(), 1, tier="disk")


def test_a_copy_that_is_away_is_no_copy_and_the_error_of_home_counts(make: Any, tmp_path: Path) -> None:
    ckpt = make()
    for step in (1, 2):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    flip(newest_pack(tmp_path / "home"), at=0.9)
    told = check_restores(make(Rule("read", Fail(StorageError("away")), match="packs/*", times=None)), 1, tier="disk")
    assert "away" in told
    told = check_restores(make(Rule("size", Fail(StorageError("away")), times=None)), 1, tier="disk")
    assert "does not hash" in told


def test_a_pack_that_has_rotted_at_home_is_not_carried_and_told(make: Any, tmp_path: Path, gate: Gate) -> None:
    ckpt = make()
    ckpt.engage()
    spoil(ckpt, Rule("size", Delay(1.0, gate), match="perdure.json"))
    saved = ckpt.save(1, state(1))
    saved.committed()
    flip(newest_pack(tmp_path / "home"), at=0.9)
    gate.opened.set()
    with pytest.raises(PerdureError, match="has rotted"):
        saved.reached("remote")
    assert "step 1 is not in" in ckpt.log.text
    assert not list((tmp_path / "far").glob("slots/*"))


def test_coded_steps_are_carried_as_they_lie(make: Any, tmp_path: Path) -> None:
    ckpt = make(coding="lossless")
    for step in (1, 2):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    shutil.rmtree(tmp_path / "home")
    check_restores(make(), 2, tier="remote")
    assert steps_at(tmp_path / "far") == [1, 2]


def test_the_copy_keeps_by_rules_of_its_own(make: Any, tmp_path: Path) -> None:
    ckpt = make(keep="last=1", remote_keep="last=2")
    for step in (1, 2, 3):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    assert (steps_at(tmp_path / "home"), steps_at(tmp_path / "far")) == ([3], [2, 3])
    ckpt = make(keep="last=1", remote_keep="all")
    check_restores(ckpt, 3, tier="disk")
    for step in (4, 5):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    assert (steps_at(tmp_path / "home"), steps_at(tmp_path / "far")) == ([5], [2, 3, 4, 5])


def test_what_is_sent_is_bounded(make: Any) -> None:
    ckpt = make(remote_bytes_per_s=4e6)
    began = time.monotonic()
    ckpt.save(1, state(1)).reached("remote")
    assert time.monotonic() - began > 0.6  # 3 MiB


# --- agents and ranks in processes of their own --------------------------------------------------------------------


def tiers(place: Place) -> list[str]:
    return ["--tiers", f"file://{place.folder}/far"]


def test_the_agent_carries_and_every_rank_hears_of_it(place: Place, undisturbed: dict[tuple[int, int], str]) -> None:
    ranks = place.train("--steps", "6", *tiers(place), "--print-remote", "--coding", "lossless")
    assert ["F " in ranks.out(rank) for rank in (0, 1)] == [True, True]
    await_that(lambda: steps_at(place.folder / "far")[-1:] == [6], "the last step to be carried")
    place.kill_agent()
    shutil.rmtree(place.run_dir)
    ranks = place.train("--steps", "12", *tiers(place))
    assert ranks.began_at() == [6, 6]
    assert ranks.digests().items() <= undisturbed.items()
    assert any("from remote" in line for line in ranks.said(0))


@pytest.mark.parametrize(
    ("match", "do"),
    [
        ("packs/*", "die after"),
        ("slots/*", "die before"),
        pytest.param("packs/*", "die before", marks=pytest.mark.slow),
        pytest.param("parts/*", "die before", marks=pytest.mark.slow),
        pytest.param("parts/*", "die after", marks=pytest.mark.slow),
        pytest.param("slots/*", "die after", marks=pytest.mark.slow),
    ],
)
def test_an_agent_that_is_killed_while_it_carries_costs_nothing(place: Place, match: str, do: str) -> None:
    place.start_agent({"verb": "put" if match == "packs/*" else "create", "match": match, "do": do, "of": "far"})
    place.train("--steps", "6", *tiers(place))
    assert place.steps() == [3, 6]
    await_that(lambda: not place.agent_pids(), "the agent to die")
    far = place.folder / "far"
    assert set(steps_at(far)) <= {3, 6}  # by the agent, or by rank 0 after it
    ranks = place.train("--steps", "9", *tiers(place), "--print-remote")
    assert ranks.began_at() == [6, 6]
    await_that(lambda: bool(steps_at(far)) and steps_at(far)[-1] == 9, "the last step to be carried")


def test_ranks_without_an_agent_carry_by_rank_0_and_all_know(place: Place) -> None:
    ranks = place.train("--steps", "6", "--no-agent", *tiers(place), "--remote-every", "2", "--print-remote")
    assert ["F 4" in ranks.out(rank) for rank in (0, 1)] == [True, True]
    assert place.steps() == [2, 3, 4, 6]
    assert steps_at(place.folder / "far") == [2, 4, 6]


def test_of_several_nodes_the_first_carries_and_all_know(place: Place) -> None:
    ranks = place.train("--steps", "6", *tiers(place), "--print-remote", nodes=["a", "b"])
    assert ["F " in ranks.out(rank) for rank in (0, 1)] == [True, True]
    await_that(lambda: steps_at(place.folder / "far")[-1:] == [6], "the last step to be carried")


def test_a_slow_copy_delays_no_drain_of_the_agent(place: Place) -> None:
    place.start_agent({"verb": "put", "match": "packs/*", "do": "hold", "of": "far"})
    place.train("--steps", "12", *tiers(place))
    assert place.steps() == [3, 6, 9, 12]
    assert not (place.folder / "far/slots").exists()
    (place.folder / "go").touch()
    await_that(lambda: steps_at(place.folder / "far") == [3, 12], "the newest to be carried")


@pytest.mark.parametrize("committed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_memory_holds_is_newer_than_the_copy_of_a_home_that_was_lost(
    place: Place, undisturbed: dict[tuple[int, int], str], committed: bool
) -> None:
    """Step 3 is in the copy; step 4 is in memory, and was at home, or was not."""
    how = ["--every", "2"] if committed else ["--every", "3", "--memory-every", "4"]
    hold = ["--hold", f"5:{place.folder}/go"]
    ranks = place.start("--steps", "16", *how, "--remote-every", "3", *tiers(place), *hold)
    ranks.await_line(r"^D 5 ", ranks=(0, 1))
    far = place.folder / "far"
    await_that(lambda: (far / "slots").exists() and steps_at(far) == [3], "step 3 to be carried")
    await_that(lambda: place.steps() == ([2, 3, 4] if committed else [3]), "the commits")
    ranks.kill_all()
    shutil.rmtree(place.run_dir)
    ranks = place.train("--steps", "9", *how, "--remote-every", "3", *tiers(place))
    assert ranks.began_at() == [4, 4]
    assert ranks.digests().items() <= undisturbed.items()
    assert place.steps()[-1] == 9
    await_that(lambda: steps_at(far) == [3, 6, 9], "the later steps to be carried")


def test_a_home_that_was_lost_gets_the_step_in_memory_from_old_nodes_with_a_new_one(place: Place) -> None:
    """Step 4 was at home, and its agents know that; the new node has no part of it, and is told where it lies now."""
    options = [*tiers(place), "--every", "2", "--remote-every", "3"]
    ranks = place.start("--steps", "16", *options, "--hold", f"5:{place.folder}/go", nodes=["a", "b"])
    ranks.await_line(r"^D 5 ", ranks=(0, 1))
    far = place.folder / "far"
    await_that(lambda: (far / "slots").exists() and steps_at(far) == [3], "step 3 to be carried")
    await_that(lambda: place.steps() == [2, 3, 4], "the commits")
    ranks.kill_all()
    shutil.rmtree(place.run_dir)
    ranks = place.train("--steps", "9", *options, world=3, nodes=["a", "b", "x"])
    assert ranks.began_at() == [4, 4, 4]
    assert not any("could not save" in ranks.out(rank) for rank in range(3))
    assert {4, 6, 8, 9} <= set(place.steps())
    await_that(lambda: steps_at(far) == [3, 6, 9], "the later steps to be carried")
