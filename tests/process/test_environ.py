"""Where a rank stands: torchrun's names, our own, and sentences where they do not fit together."""

from __future__ import annotations

import pytest

from perdure.errors import CallError
from perdure.process.environ import Placement, child_env, without_mark

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "j7",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_a_process_without_a_launcher_is_rank_0_of_1() -> None:
    assert Placement.read({}) == Placement()
    assert Placement.read({}).attempt_id == "default.0"


def test_torchruns_environment_is_read_as_it_is() -> None:
    placement = Placement.read(TORCHRUN)
    assert (placement.rank, placement.world, placement.local_rank, placement.local_world, placement.node) == (
        5,
        8,
        1,
        4,
        1,
    )
    assert (placement.job, placement.attempt, placement.master_port) == ("j7", 2, 29500)
    assert placement.attempt_id == "j7.2"


def test_a_rank_reads_what_its_launcher_wrote() -> None:
    sent = Placement(
        rank=1,
        world=2,
        local_rank=1,
        local_world=2,
        job="j",
        attempt=3,
        master_addr="::1",
        master_port=4000,
        mark="m.3",
        events="/e",
        node_name="n1",
        domain="rack 3",
        resume_must=True,
        restore_before=300,
        skip=((7, 7), (317, 318)),
    )
    assert Placement.read(child_env(sent, base=TORCHRUN)) == sent


def test_nested_launchers_leave_both_marks_and_the_inner_names_the_attempt() -> None:
    env = child_env(Placement(mark="in.0"), base={"PERDURE_MARK": "out.4"})
    assert env["PERDURE_MARK"] == "out.4:in.0"
    assert Placement.read(env).attempt_id == "in.0"
    assert "PERDURE_MARK" not in without_mark(env)
    assert "RANK" not in without_mark(env)


def test_threads_and_buffering_have_defaults_that_the_user_overrules() -> None:
    assert child_env(Placement(), base={})["OMP_NUM_THREADS"] == "1"
    assert child_env(Placement(), base={"OMP_NUM_THREADS": "9"})["OMP_NUM_THREADS"] == "9"
    assert child_env(Placement(), base={})["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"RANK": None}, "RANK is not set"),
        ({"RANK": "8"}, "RANK is 8; it must be from 0 to 7"),
        ({"RANK": "-1"}, "RANK is -1"),
        ({"RANK": "one"}, "RANK must be a whole number, not 'one'"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK is 4; it must be from 0 to 3"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9"),
        ({"LOCAL_WORLD_SIZE": None}, "LOCAL_WORLD_SIZE is not set"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
    ],
)
def test_what_does_not_fit_together_is_a_sentence(change: dict[str, str | None], sentence: str) -> None:
    env = {name: value for name, value in (TORCHRUN | change).items() if value is not None}
    with pytest.raises(CallError, match=sentence):
        Placement.read(env)


def test_a_rank_is_told_the_name_of_its_node_and_what_fails_with_it() -> None:
    env = child_env(Placement(node_name="n1", domain="rack7"), base={"PERDURE_NODE": "outer"})

    assert (Placement.read(env).node_name, Placement.read(env).domain) == ("n1", "rack7")


def test_ranks_inherit_what_holds_for_every_attempt_and_not_a_roll_back() -> None:
    base = {"PERDURE_RESUME": "must", "PERDURE_SKIP": "9:9, 3:4", "PERDURE_RESTORE_BEFORE": "8"}
    told = Placement.read(child_env(Placement(), base=base))
    assert (told.resume_must, told.skip, told.restore_before) == (True, ((3, 4), (9, 9)), None)
    told = Placement.read(child_env(Placement(skip=((5, 6),), restore_before=4), base=base))
    assert (told.skip, told.restore_before) == (((5, 6),), 4)
    assert Placement.read(child_env(Placement(), base=child_env(Placement(may_skip=True), base={}))).may_skip
    assert not told.may_skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PERDURE_RESUME", "maybe"),
        ("PERDURE_RESTORE_BEFORE", "0"),
        ("PERDURE_RESTORE_BEFORE", "ten"),
        ("PERDURE_SKIP", "5"),
        ("PERDURE_SKIP", "6:5"),
        ("PERDURE_SKIP", "0:1"),
        ("PERDURE_SKIP", "1:2,x:y"),
    ],
)
def test_what_a_launcher_may_not_say_about_going_on_is_refused(name: str, value: str) -> None:
    with pytest.raises(CallError, match=name):
        Placement.read({name: value})
