"""From evidence to a verdict: real last words of many kinds, the rules of repetition, and that nothing goes on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.supervisor.causes import Death, LastWords, first_cause, same_failure
from perdure.supervisor.symptoms import Means, read
from perdure.supervisor.verdict import Act, Evidence, Failure, Kind, LateRank, Named, Past, Verdict, judge

import last_words as w  # isort: skip


def died(tail: tuple[str, ...] = (), *, rank: int = 0, node: str = "a", code: int | None = 1, signal: int | None = None,
         step: int | None = 7) -> Evidence:  # fmt: skip
    return Evidence(deaths=(Death(rank, None if signal else code, signal, tail, node, step),), n_nodes=2)


def judged(*many: Evidence, allow_skip: bool = False) -> list[Verdict]:
    """What is said of failures that follow one another without progress."""
    past, found = Past(), []
    for evidence in many:
        found.append(judge(evidence, past, allow_skip=allow_skip))
        past = past.after(found[-1])
    return found


def acts(*many: Evidence, allow_skip: bool = False) -> list[Act]:
    return [verdict.act for verdict in judged(*many, allow_skip=allow_skip)]


@pytest.mark.parametrize(
    ("tail", "kind", "means"),
    [
        (w.GLOO_CLOSED, Kind.NETWORK, Means.PASSING),
        (w.GLOO_TIMEOUT, Kind.NETWORK, Means.PASSING),
        (w.STORE_TIMEOUT, Kind.NETWORK, Means.PASSING),
        (w.STORE_CLIENTS, Kind.NETWORK, Means.PASSING),
        (w.NCCL_REMOTE, Kind.NETWORK, Means.PASSING),
        (w.NCCL_SYSTEM, Kind.NETWORK, Means.PASSING),
        (w.PORT_TAKEN, Kind.NETWORK, Means.PASSING),
        (w.NO_NAME, Kind.NETWORK, Means.PASSING),
        (w.IB_DOWN, Kind.NETWORK, Means.PASSING),
        (w.CUDA_OOM, Kind.PROCESS, Means.OWN),
        (w.CUDA_ASSERT, Kind.USER, Means.OWN),
        (w.CUDA_ECC, Kind.NODE, Means.HARDWARE),
        (w.XID, Kind.NODE, Means.HARDWARE),
        (w.CUDA_LAUNCH, Kind.PROCESS, Means.UNCLEAR),
        (w.NO_GPU, Kind.NODE, Means.UNCLEAR),
        (w.NO_CUDA, Kind.USER, Means.HOPELESS),
        (w.HOST_MEMORY, Kind.PROCESS, Means.UNCLEAR),
        (w.WORKER_KILLED, Kind.PROCESS, Means.UNCLEAR),
        (w.NFS_STALE, Kind.STORAGE, Means.PASSING),
        (w.NFS_TIMEOUT, Kind.STORAGE, Means.PASSING),
        (w.LUSTRE_EIO, Kind.STORAGE, Means.PASSING),
        (w.LUSTRE_EVICTED, Kind.STORAGE, Means.PASSING),
        (w.S3_SLOW, Kind.STORAGE, Means.PASSING),
        (w.HTTP_429, Kind.STORAGE, Means.PASSING),
        (w.DISK_FULL, Kind.STORAGE, Means.OWN),
        (w.READ_ONLY, Kind.NODE, Means.UNCLEAR),
        (w.IMPORT, Kind.USER, Means.HOPELESS),
        (w.SYNTAX, Kind.USER, Means.HOPELESS),
        (w.NO_SCRIPT, Kind.USER, Means.HOPELESS),
        (w.ARGUMENTS, Kind.USER, Means.HOPELESS),
        (w.NO_STEP, Kind.STORAGE, Means.HOPELESS),
        (w.NAN, Kind.DATA, Means.VALUE),
        (w.NAN_ANOMALY, Kind.DATA, Means.VALUE),
        (w.NAN_POINT, Kind.DATA, Means.VALUE),
        (w.KEY, Kind.USER, Means.OWN),
        (w.SHAPE, Kind.USER, Means.OWN),
        ((), Kind.UNKNOWN, Means.PASSING),
    ],
)
@pytest.mark.parametrize("prefixed", [False, True])
def test_last_words_are_read(tail: tuple[str, ...], kind: Kind, means: Means, prefixed: bool) -> None:
    reading = read(Death(3, code=1, tail=w.of_rank(3, tail) if prefixed else tail))
    assert (reading.kind, reading.means) == (kind, means)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: cannot convert float NaN to integer",
        "KeyError: 'nanotron'",
        "RuntimeError: value 17 exceeds the information of the tenant",
        "AttributeError: module 'torch' has no attribute 'inference'",
        "ValueError: expected 500 samples, but got 503",
    ],
)
def test_words_that_only_look_like_a_symptom_are_the_programs(line: str) -> None:
    assert read(Death(0, code=1, tail=w.raised(line))).kind is Kind.USER


def test_what_is_printed_before_the_exception_does_not_count() -> None:
    tail = ("step 5: loss is nan, skipped", "warning: Connection reset by peer, tried again", *w.KEY)
    assert read(Death(0, code=1, tail=tail)).kind is Kind.USER


def test_an_exception_in_a_thread_or_at_exit_is_not_the_end() -> None:
    tail = (*w.KEY, "Exception ignored in: <function Pool.__del__ at 0x7f>", *w.LUSTRE_EIO)
    words = LastWords.of(tail)
    assert (words.error, words.place) == ("KeyError", "train.py:41 in step")


def test_of_a_chain_the_last_exception_counts() -> None:
    tail = (*w.KEY, "", "The above exception was the direct cause of the following exception:", "", *w.LUSTRE_EIO)
    assert LastWords.of(tail).error == "OSError"


def test_the_watchdogs_abort_is_a_victim() -> None:
    hung = Death(1, signal=6, tail=w.NCCL_WATCHDOG)
    assert first_cause([hung, Death(0, code=1, tail=w.KEY)]).rank == 0
    assert read(hung).kind is Kind.NETWORK


def test_a_rank_that_waited_in_vain_is_not_the_cause() -> None:
    waited = Death(1, code=75, tail=w.raised("perdure.errors.DeadlineExceeded: rank 0 did not come"))
    assert first_cause([waited, Death(0, signal=9)]).rank == 0


def test_the_same_message_at_another_place_is_another_failure() -> None:
    here, there = (Death(0, code=1, tail=w.raised("ValueError: bad batch 7", at=at)) for at in (41, 90))
    again = Death(2, code=1, tail=w.of_rank(2, w.raised("ValueError: bad batch 12", at=41)))
    assert same_failure(again, here)
    assert not same_failure(there, here)


# --- what is done -----------------------------------------------------------------------------------------------------


def test_a_failure_of_the_program_stops_the_second_time_with_its_error_in_front() -> None:
    once, twice = judged(died(w.KEY, rank=1), died(w.of_rank(0, w.KEY), rank=0))
    assert (once.kind, once.act) == (Kind.USER, Act.RESTART)
    assert (twice.kind, twice.act, twice.rank) == (Kind.USER, Act.STOP, 0)
    assert twice.sentence == (
        "rank 0 on node a failed (KeyError: 'labels'); it failed the same way twice without a new step: "
        "a restart cannot help"
    )


def test_different_failures_are_left_to_the_budget() -> None:
    assert acts(died(w.KEY), died(w.SHAPE), died(w.raised("KeyError: 'labels'", at=99))) == [Act.RESTART] * 3


@pytest.mark.parametrize("tail", [w.IMPORT, w.SYNTAX, w.NO_SCRIPT, w.ARGUMENTS, w.NO_STEP, w.NO_CUDA])
def test_what_cannot_get_better_stops_at_once(tail: tuple[str, ...]) -> None:
    assert acts(died(tail)) == [Act.STOP]


@pytest.mark.parametrize("code", [64, 73, 126, 127])
def test_an_exit_code_that_says_so_stops_at_once(code: int) -> None:
    assert acts(died(code=code)) == [Act.STOP]


@pytest.mark.parametrize("tail", [w.GLOO_CLOSED, w.STORE_TIMEOUT, w.PORT_TAKEN, w.NO_NAME, w.S3_SLOW, w.HTTP_429])
def test_what_passes_is_tried_again_and_again(tail: tuple[str, ...]) -> None:
    assert acts(*[died(tail)] * 6) == [Act.RESTART] * 6


def test_exit_75_is_tried_again_and_again() -> None:
    assert (
        acts(*[died(w.raised("perdure.errors.LinkLost: the link to rank 2 is closed"), code=75)] * 4)
        == [Act.RESTART] * 4
    )


def test_a_superseded_rank_stops_the_job_whoever_failed_before_it() -> None:
    deaths = (Death(0, code=1, tail=w.KEY), Death(1, code=73, tail=w.SUPERSEDED))
    verdict = judge(Evidence(deaths=deaths, lost=("b",)), Past(), allow_skip=True)
    assert (verdict.act, verdict.rank) == (Act.STOP, 1)


def test_the_same_node_at_fault_twice_in_a_row_is_replaced() -> None:
    kill = [died(signal=9, node=node) for node in ("a", "b", "b", "b", "b")]
    found = judged(*kill)
    # Once replaced, the name stands for a node that is new in its place.
    assert [each.act for each in found] == [Act.RESTART, Act.RESTART, Act.REPLACE, Act.RESTART, Act.REPLACE]
    assert found[2].nodes == ("b",)


def test_a_shell_that_passes_a_signal_on_is_seen_through() -> None:
    assert read(Death(0, code=137)).says == "was killed from outside"


def test_broken_hardware_is_replaced_at_once() -> None:
    (verdict,) = judged(died(w.CUDA_ECC, node="n7", rank=5))
    assert (verdict.kind, verdict.act, verdict.node) == (Kind.NODE, Act.REPLACE, "n7")


@pytest.mark.parametrize("end", [died(w.CUDA_LAUNCH), died(signal=11), died(w.HOST_MEMORY), died(signal=6)])
def test_a_crash_is_the_nodes_if_it_repeats_there_and_the_jobs_if_it_moves(end: Evidence) -> None:
    (death,) = end.deaths
    elsewhere = Evidence(deaths=(Death(0, death.code, death.signal, death.tail, "b"),), n_nodes=2)
    assert acts(end, elsewhere) == [Act.RESTART, Act.STOP]
    assert acts(end, end, elsewhere) == [Act.RESTART, Act.REPLACE, Act.STOP]


def test_cuda_memory_that_ran_out_once_may_have_been_anothers() -> None:
    once, twice = judged(died(w.CUDA_OOM), died(w.CUDA_OOM))
    assert (once.kind, once.act) == (Kind.PROCESS, Act.RESTART)
    assert (twice.kind, twice.act) == (Kind.USER, Act.STOP)


def test_the_kernels_memory_events_explain_a_kill() -> None:
    (death,) = died(signal=9).deaths
    verdict = judge(Evidence(deaths=(death,), out_of_memory=("a",)), Past(), allow_skip=False)
    assert "memory ran out" in verdict.sentence
    assert "memory" not in judge(Evidence(deaths=(death,), out_of_memory=("b",)), Past(), allow_skip=False).sentence


def test_a_file_system_that_fails_on_several_nodes_is_no_nodes_fault() -> None:
    everywhere = Evidence(
        deaths=tuple(Death(i, code=1, tail=w.LUSTRE_EIO, node=node) for i, node in enumerate("ab")), n_nodes=2
    )
    assert acts(*[everywhere] * 3) == [Act.RESTART] * 3
    assert acts(died(w.LUSTRE_EIO), died(w.LUSTRE_EIO)) == [Act.RESTART, Act.REPLACE]


def test_numbers_that_are_not_finite_at_the_same_step_twice_are_the_datas() -> None:
    once, twice = judged(died(w.NAN, step=317), died(w.NAN, step=317), allow_skip=True)
    assert (once.kind, once.act) == (Kind.DATA, Act.RESTART)
    assert (twice.kind, twice.act, twice.skip) == (Kind.DATA, Act.ROLL_BACK, (317, 318))
    assert acts(died(w.NAN, step=317), died(w.NAN, step=317)) == [Act.RESTART, Act.STOP]
    assert acts(died(w.NAN, step=317), died(w.NAN, step=290), allow_skip=True) == [Act.RESTART, Act.RESTART]


def test_roll_backs_end() -> None:
    bad = died(w.NAN, step=5)
    assert acts(*[bad] * 4, allow_skip=True) == [Act.RESTART, Act.ROLL_BACK, Act.ROLL_BACK, Act.STOP]


def test_a_step_that_nobody_knows_is_not_skipped() -> None:
    bad = died(w.NAN, step=None)
    assert acts(bad, bad, allow_skip=True) == [Act.RESTART, Act.STOP]
    assert acts(*[died(w.NAN, step=1)] * 2, allow_skip=True) == [Act.RESTART, Act.STOP]


def test_a_failed_check_and_a_lost_node_replace_nodes() -> None:
    evidence = Evidence(bad=(("b", "its disk writes 3 MB/s."),), lost=("c", "b"), deaths=died(w.GLOO_CLOSED).deaths)
    verdict = judge(evidence, Past(), allow_skip=False)
    assert (verdict.kind, verdict.act, verdict.node, verdict.nodes) == (Kind.NODE, Act.REPLACE, "b", ("b", "c"))
    assert verdict.sentence == "node b failed a check: its disk writes 3 MB/s; others take their places"


def test_a_node_that_is_gone_leaves_a_hole_and_is_replaced_if_it_goes_again() -> None:
    once, twice = judged(*[Evidence(lost=("b",), deaths=died(w.GLOO_CLOSED).deaths, n_nodes=2)] * 2)
    assert (once.kind, once.act, once.nodes) == (Kind.NODE, Act.RESTART, ())
    assert (twice.kind, twice.act, twice.nodes) == (Kind.NODE, Act.REPLACE, ("b",))


def test_in_a_job_of_one_node_the_same_node_is_no_evidence() -> None:
    (death,) = died(signal=9).deaths
    alone = Evidence(deaths=(death,))
    hang = Evidence(late=(LateRank(2, "b", "STEP", 63.0, 60.0),))
    assert acts(*[alone] * 4, *[hang] * 3, *[Evidence(lost=("b",))] * 2) == [Act.RESTART] * 9
    assert acts(Evidence(deaths=died(w.CUDA_ECC).deaths)) == [Act.REPLACE]


def test_nodes_that_are_worth_a_check_are_named() -> None:
    assert judged(died(w.CUDA_LAUNCH, node="b"))[0].suspects == ("b",)
    assert judged(died(w.KEY))[0].suspects == ()
    assert judged(died(signal=9))[0].suspects == ()
    hang = Evidence(late=(LateRank(2, "b", "STEP", 63.0, 60.0), LateRank(0, "a", "STEP", 63.0, 60.0)), n_nodes=2)
    assert judged(hang)[0].suspects == ("b", "a")


def test_a_program_that_is_broken_on_a_bad_node_alone_is_the_nodes_fault() -> None:
    (death,) = died(w.IMPORT, node="b").deaths
    assert judge(Evidence(deaths=(death,), bad=(("b", "cannot read"),)), Past(), allow_skip=False).act is Act.REPLACE
    assert judge(Evidence(deaths=(death,), bad=(("c", "cannot read"),)), Past(), allow_skip=False).act is Act.STOP


def test_a_hang_is_restarted_and_the_second_on_a_node_replaces_it() -> None:
    hang = Evidence(late=(LateRank(2, "b", "STEP", 63.0, 60.0, 9),), deaths=died(w.GLOO_TIMEOUT).deaths, n_nodes=2)
    once, _, twice = judged(hang, died(w.KEY), hang)
    assert once.sentence == "rank 2 on node b hung: 63 s in step, which may take 60 s"
    assert (once.kind, once.act, once.rank) == (Kind.PROCESS, Act.RESTART, 2)
    assert (twice.act, twice.nodes) == (Act.REPLACE, ("b",))


def test_an_exception_explains_why_others_are_late() -> None:
    evidence = Evidence(late=(LateRank(2, "b", "STEP", 63.0, 60.0),), deaths=died(w.KEY).deaths)
    assert judge(evidence, Past(), allow_skip=False).kind is Kind.USER


def test_a_rank_that_had_finished_is_excused() -> None:
    done = Death(0, signal=6, finished=True)
    verdict = judge(Evidence(deaths=(done, Death(1, code=1, tail=w.KEY))), Past(), allow_skip=False)
    assert verdict.rank == 1


def test_who_asked_for_the_end_gets_it() -> None:
    verdict = judge(Evidence(asked=True, lost=("b",)), Past(), allow_skip=False)
    assert (verdict.kind, verdict.act) == (Kind.USER, Act.STOP)


# --- for any evidence -------------------------------------------------------------------------------------------------

TAILS = [value for name, value in vars(w).items() if name.isupper()]
NODES = st.sampled_from(["", "a", "b", "c"])
DEATHS = st.builds(
    Death,
    rank=st.integers(0, 7),
    code=st.sampled_from([None, 1, 2, 65, 70, 75, 137]),
    signal=st.sampled_from([None, 6, 7, 9, 11, 15]),
    tail=st.one_of(st.sampled_from([(), *TAILS]), st.lists(st.text(max_size=40), max_size=5).map(tuple)),
    node=NODES,
    step=st.none() | st.integers(0, 3),
    finished=st.booleans(),
)
EVIDENCE = st.builds(
    Evidence,
    deaths=st.lists(DEATHS, max_size=4).map(tuple),
    lost=st.lists(NODES.filter(bool), max_size=2).map(tuple),
    late=st.lists(
        st.builds(LateRank, st.integers(0, 7), NODES, st.just("STEP"), st.just(9.0), st.just(1.0)), max_size=2
    ).map(tuple),
    bad=st.lists(st.tuples(NODES.filter(bool), st.just("it is slow")), max_size=2).map(tuple),
    out_of_memory=st.lists(NODES, max_size=1).map(tuple),
    named=st.none()
    | st.builds(
        Named,
        attempt=st.just(0),
        incident=st.just("r-0.1"),
        action=st.sampled_from(["restart", "rollback", "stop_user"]),
        label=st.sampled_from(["hw.sdc", "train.nan", "sw.desync"]),
        sentence=st.just("it is so"),
        rank=st.none() | st.integers(0, 7),
        nodes=st.lists(NODES.filter(bool), max_size=2).map(tuple),
        step=st.none() | st.integers(0, 9),
    ),
    rolled_back=st.lists(st.none() | st.integers(0, 9), max_size=3).map(tuple),
    n_nodes=st.integers(1, 3),
    asked=st.booleans(),
)


@given(st.lists(EVIDENCE, max_size=8), st.booleans())
def test_every_verdict_is_whole_and_the_past_survives_a_journal(many: list[Evidence], allow_skip: bool) -> None:
    past = Past()
    for evidence in many:
        verdict = judge(evidence, past, allow_skip=allow_skip)
        assert (verdict.act is Act.REPLACE) == bool(verdict.nodes)
        assert all(verdict.nodes)
        assert verdict.skip is None or (verdict.act is Act.ROLL_BACK and allow_skip)
        assert verdict.before is None or verdict.act is Act.ROLL_BACK
        assert verdict.act is not Act.ROLL_BACK or allow_skip or evidence.named is not None
        assert not evidence.asked or verdict.act is Act.STOP
        assert verdict.sentence
        assert "\n" not in verdict.sentence
        past = past.after(verdict)
        assert msgspec.json.decode(msgspec.json.encode(past), type=Past) == past
        again = msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict)
        assert again == verdict
        assert isinstance(again.failure, Failure)


@given(EVIDENCE, st.booleans())
def test_the_order_of_peers_that_only_complain_does_not_matter(evidence: Evidence, last: bool) -> None:
    complaint = Death(7, code=1, tail=w.GLOO_CLOSED, node="c")
    own = Death(0, code=1, tail=w.KEY, node="a")
    deaths = (own, complaint) if last else (complaint, own)
    verdict = judge(Evidence(deaths=deaths, late=evidence.late), Past(), allow_skip=False)
    assert (verdict.kind, verdict.rank) == (Kind.USER, 0)


@given(DEATHS, st.booleans())
def test_a_failure_that_only_repeats_stops_or_is_one_that_passes(death: Death, allow_skip: bool) -> None:
    """No death that says the same for ever goes on but by what the budget bounds."""
    found = judged(*[Evidence(deaths=(death,))] * 6, allow_skip=allow_skip)
    means = read(death).means
    if found[-1].act is not Act.STOP:
        assert death.finished or means in (Means.PASSING, Means.HARDWARE)
