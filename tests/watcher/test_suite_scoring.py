"""The judge of the fault suite: what counts as named, once, innocent, in time; the journal; the tables of the docs."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from perdure.testing.faults.cases import Outcome, Told, campaign, draw
from perdure.testing.faults.job import Node
from perdure.testing.faults.kinds import FAULTS, HEALTHY, KINDS, Family, Whom, markdown
from perdure.testing.faults.playing import OUTSIDE
from perdure.testing.faults.report import broken, journal, promises, write
from perdure.testing.faults.scoring import p95, score, wilson
from perdure.watcher.samples import NodeSample

ROOT = Path(__file__).parents[2]


def outcome_of(name: str, seed: int, *told: Told) -> Outcome:
    case = draw(KINDS[name], seed)
    node = case.node_of(case.victim)
    return Outcome(
        kind=name, seed=seed, nodes=case.nodes, rank=case.victim, node=node, step=9, step_s=0.05, told=told
    )  # fmt: skip


def said(**other: object) -> Told:
    words = {"after_s": 1.0, "incident": "0.1", "stage": "verdict", "label": "transient.unknown", "action": "restart"}
    return msgspec.convert({"sentence": "so it is", **words, **other}, Told)


def victim(name: str, seed: int) -> tuple[int, str, str]:
    """Rank and node that are struck, and another node."""
    case = draw(KINDS[name], seed)
    node = case.node_of(case.victim)
    return case.victim, node, next(f"n{i}" for i in range(len(case.nodes)) if f"n{i}" != node)


def test_the_right_rank_with_a_right_label_and_action_told_once_is_right() -> None:
    rank, _, _ = victim("killed", 0)
    judged = score(outcome_of("killed", 0, said(ranks=[rank])))
    assert judged.right
    assert (judged.suspected_s, judged.verdict_s, judged.action_s) == (1.0, 1.0, 1.0)


def test_nothing_said_is_a_miss_and_never() -> None:
    judged = score(outcome_of("killed", 0))
    assert (judged.right, judged.named, judged.verdict_s, judged.incidents) == (False, False, None, 0)


def test_another_node_is_innocent_even_if_it_was_only_suspected_for_a_while() -> None:
    rank, _, other = victim("hang-compute", 0)
    first = said(after_s=6.0, stage="suspicion", nodes=[other], action="restart")
    judged = score(outcome_of("hang-compute", 0, first, said(after_s=10.5, ranks=[rank])))
    assert (judged.named, judged.acted, judged.false, judged.right) == (True, True, 1, False)


def test_a_second_incident_is_one_too_many_and_its_action_is_wrong() -> None:
    rank, _, _ = victim("killed", 0)
    extra = said(after_s=2.0, incident="0.2", action="stop_user")
    judged = score(outcome_of("killed", 0, said(ranks=[rank]), extra))
    assert (judged.named, judged.incidents, judged.acted, judged.right) == (True, 2, False, False)


def test_a_warning_is_no_action_and_a_suspicion_no_verdict() -> None:
    rank, _, _ = victim("stopped", 0)
    warned = said(ranks=[rank], action="warn")
    judged = score(outcome_of("stopped", 0, warned))
    assert (judged.verdict_s, judged.action_s, judged.acted) == (1.0, None, False)
    suspected = score(outcome_of("hang-compute", 0, said(ranks=[victim("hang-compute", 0)[0]], stage="suspicion")))
    assert (suspected.suspected_s, suspected.verdict_s, suspected.accuses) == (1.0, None, False)


def test_where_nobody_is_at_fault_any_name_is_an_accusation() -> None:
    right = said(label="train.divergence", action="stop_user")
    assert score(outcome_of("diverges", 0, right)).right
    named = msgspec.structs.replace(right, nodes=("n0",))
    judged = score(outcome_of("diverges", 0, named))
    assert (judged.named, judged.false) == (False, 1)


def test_what_is_told_before_the_fault_is_a_false_alarm_and_not_the_answer() -> None:
    rank, _, _ = victim("killed", 0)
    judged = score(outcome_of("killed", 0, said(after_s=-3.0, incident="0.1", ranks=[rank])))
    assert (judged.actions, judged.incidents, judged.right) == (1, 0, False)


def test_healthy_cases_count_actions_and_warnings_and_some_warnings_are_fair() -> None:
    assert score(outcome_of("plain", 0)).right
    judged = score(outcome_of("plain", 0, said(action="warn"), said(incident="0.2")))
    assert (judged.actions, judged.warnings) == (1, 1)
    fair = score(outcome_of("breakpoint", 0, said(action="warn", ranks=[0])))
    assert (fair.right, fair.false) == (True, 0)


def test_promises_that_are_not_kept_are_told_and_the_misses_are_in_the_report() -> None:
    outcomes = [outcome_of("killed", seed, said(ranks=[victim("killed", seed)[0]])) for seed in range(9)]
    assert broken([score(each) for each in outcomes]) == []
    missed = outcome_of("killed", 9)
    scores = [score(each) for each in (*outcomes, missed)]
    told = " ".join(broken(scores))
    assert "recall" in told
    assert "p95 to its verdict" in told
    text = write([*outcomes, missed], title="T", about=["A."])
    assert "**killed/9**" in text
    assert "nothing was said" in text
    assert "**killed/3**" not in text
    assert len(promises(scores)) == 13


def test_a_case_that_could_not_be_played_is_told_and_not_counted() -> None:
    bad = msgspec.structs.replace(outcome_of("killed", 1), troubles=("no room",))
    text = write([outcome_of("plain", 0), bad], title="T", about=[])
    assert "1 cases" in text
    assert "killed/1: no room" in text


def test_the_journal_leaves_out_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = [msgspec.json.encode(outcome_of("killed", seed)) for seed in range(3)]
    path.write_bytes(whole[0] + b"\n" + whole[1] + b"\n" + whole[2][:40])
    assert sorted(journal(path)) == [("killed", 0), ("killed", 1)]


def test_intervals_and_order_statistics() -> None:
    low, high = wilson(120, 120)
    assert (round(low, 3), round(high, 3)) == (0.969, 1.0)
    assert p95([*[1.0] * 18, None, None]) == math.inf
    assert p95([float(n) for n in range(1, 101)]) == 95.0
    assert math.isnan(p95([]))


def test_a_case_is_drawn_from_its_seed_alone_and_seeds_differ() -> None:
    assert draw(KINDS["killed"], 5) == draw(KINDS["killed"], 5)
    drawn = {(case.nodes, case.victim, case.plan.at_step) for case in (draw(KINDS["killed"], s) for s in range(20))}
    assert len(drawn) > 10


def test_a_campaign_has_every_kind_and_each_case_once() -> None:
    cases = campaign()
    assert len(cases) == 180
    assert len({case.name for case in cases}) == 180
    assert {case.kind.name for case in cases} == set(KINDS)
    assert {case.kind.name for case in cases[:60]} >= {kind.name for kind in HEALTHY}


@pytest.mark.parametrize("kind", [*FAULTS, *HEALTHY], ids=lambda kind: kind.name)
def test_every_kind_is_complete(kind: object) -> None:
    from perdure.testing.faults.kinds import Kind

    assert isinstance(kind, Kind)
    assert bool(kind.labels) == bool(kind.actions) == (kind.family is not Family.HEALTHY)
    case = draw(kind, 1)
    assert case.victim < sum(case.nodes)
    if kind.whom is Whom.NODE and kind.family is Family.SLOW and kind.name not in OUTSIDE:
        assert {case.node_of(rank) for rank in case.plan.victims} == {case.node_of(case.victim)}


def test_every_fault_is_made_by_somebody_and_nothing_is_made_that_is_no_kind() -> None:
    inside = (ROOT / "src" / "perdure" / "testing" / "faults" / "trouble.py").read_text()
    inside += (ROOT / "src" / "perdure" / "testing" / "faults" / "train.py").read_text()
    plans = {"plain", "long-save", "long-evaluation", "compiles", "skew", "resume"}  # made by how it trains alone
    assert {kind.name for kind in (*FAULTS, *HEALTHY) if f'"{kind.name}"' not in inside} == set(OUTSIDE) | plans
    assert set(OUTSIDE) < set(KINDS)


def test_a_node_shows_its_own_neighbours_alone_and_its_own_clock(tmp_path: Path) -> None:
    node = Node("n0", (0,), tmp_path)
    seen = NodeSample(node="n0", at_s=1.0, foreign_cpu=(("make (pid 12)", 0.9), ("python (pid 112)", 0.8)))
    assert node.shown(seen).foreign_cpu == ()
    node.neighbours.add(112)
    assert node.shown(seen).foreign_cpu == (("python (pid 112)", 0.8),)
    node.alters = lambda sample: msgspec.structs.replace(sample, oom_kills=3)
    assert node.shown(seen).oom_kills == 3
    before = node.clock.wall()
    node.clock.offset_s = 3600.0
    assert 3599 < node.clock.wall() - before < 3700


def test_the_tables_of_the_docs_are_those_of_the_code() -> None:
    assert markdown() in (ROOT / "docs" / "watcher-suite.md").read_text()
