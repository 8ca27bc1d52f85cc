"""How incidents live: told once, kept by their id, cleared, muted, acknowledged; and the hysteresis."""

from __future__ import annotations

import pytest

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.incidents import Entry, Incidents, Mute, Past, temper
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.verdicts import judge

NODES = {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7), "c": (8, 9, 10, 11)}
NODE_OF = {rank: node for node, ranks in NODES.items() for rank in ranks}


def found(kind: str, *ranks: int, label: Label | None = None, at_s: float = 0.0) -> Evidence:
    nodes = tuple(sorted({NODE_OF[rank] for rank in ranks}))
    return Evidence(kind=kind, at_s=at_s, sentence=kind, ranks=ranks, nodes=nodes, label=label)


def feed(incidents: Incidents, now_s: float, *evidence: Evidence, overdue: bool = False) -> list[Verdict]:
    return incidents.feed(evidence, now_s, overdue=overdue, ranks_of_nodes=NODES, node_of=NODE_OF)


def test_a_suspicion_is_told_once_and_becomes_a_verdict_with_the_same_id() -> None:
    incidents = Incidents(Past())
    (first,) = feed(incidents, 0.0, found("behind", 5))
    assert first.stage is Stage.SUSPICION
    assert feed(incidents, 1.0, found("behind", 5)) == []
    (second,) = feed(incidents, 2.0, found("behind", 5), overdue=True)
    assert (second.stage, second.incident, second.action) == (Stage.VERDICT, first.incident, Action.RESTART)
    assert second.confidence >= first.confidence
    assert feed(incidents, 3.0, found("behind", 5)) == []


def test_a_suspicion_that_is_not_found_any_more_is_cleared_and_teaches_patience() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("behind", 5))
    told = [verdict for second in range(1, 6) for verdict in feed(incidents, float(second))]
    assert [each.stage for each in told] == [Stage.CLEARED]
    assert incidents.forgiven_s > 0
    assert incidents.open == ()
    (again,) = feed(incidents, 9.0, found("behind", 5))
    assert again.incident != told[0].incident


def test_one_look_without_it_does_not_clear_an_incident() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("behind", 5))
    assert feed(incidents, 1.0) == []
    assert feed(incidents, 2.0, found("behind", 5)) == []


def test_a_stopped_rank_is_a_warning_until_the_deadline() -> None:
    incidents = Incidents(Past())
    (first,) = feed(incidents, 0.0, found("stopped", 5))
    assert (first.stage, first.action, first.ranks, first.nodes) == (Stage.VERDICT, Action.WARN, (5,), ())
    (second,) = feed(incidents, 1.0, found("stopped", 5), overdue=True)
    assert (second.incident, second.action) == (first.incident, Action.RESTART)


def test_a_rank_at_a_breakpoint_stays_a_warning() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("traced", 5))
    assert feed(incidents, 100.0, found("traced", 5), overdue=True) == []


def test_what_is_left_of_a_breakpoint_is_not_acted_on_before_the_deadline() -> None:
    incidents = Incidents(Past())
    told = feed(incidents, 0.0, found("traced", 5), found("all-waiting"))
    for second in range(1, 5):
        told += feed(incidents, float(second), found("all-waiting"))
    assert all(each.action is Action.WARN for each in told if each.stage is Stage.VERDICT)


def test_deaths_after_the_first_are_its_consequences() -> None:
    incidents = Incidents(Past())
    assert feed(incidents, 0.0, found("killed", 5)) == []  # what the kernel and the logs say may still come
    (told,) = feed(incidents, 1.0, found("raised", 1), found("raised", 2))
    assert (told.label, told.ranks) == (Label.UNKNOWN, (5,))
    assert feed(incidents, 9.0, found("killed", 1), found("killed", 2)) == []


def test_who_was_suspected_stays_the_cause_when_the_others_give_up() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("behind", 5), found("in-loading", 5))
    (told,) = feed(incidents, 1.0, found("raised"), found("behind", 5), found("in-loading", 5))
    assert (told.stage, told.label, told.ranks) == (Stage.VERDICT, Label.DATALOADER, (5,))
    assert feed(incidents, 8.0, found("killed", 5)) == []  # the launcher ends the rest


def test_a_kernel_that_killed_for_memory_explains_the_death_in_either_order() -> None:
    for looks in ([("killed", "oom-kill")], [("oom-kill",), ("killed",)], [("killed",), ("oom-kill",)]):
        incidents, told = Incidents(Past()), []
        for second in range(8):
            now = [found(kind, 5) for kind in looks[second]] if second < len(looks) else []
            told += feed(incidents, float(second), *now)
        assert told[-1].label is Label.HOST_OOM
        assert told[-1].action is Action.STOP_USER


def test_a_restart_clears_and_arms_anew() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("killed", 5))
    (first,) = feed(incidents, 1.0)
    incidents.restarted(1)
    (cleared,) = feed(incidents, 2.0)
    assert (cleared.stage, cleared.incident) == (Stage.CLEARED, first.incident)
    feed(incidents, 50.0, found("killed", 9))
    (second,) = feed(incidents, 51.0)
    assert second.incident == "1.1"
    assert second.ranks == (9,)


def test_things_that_do_not_stop_a_job_have_incidents_of_their_own() -> None:
    incidents = Incidents(Past())
    told = feed(incidents, 0.0, found("slow-rank", 5), found("clock-jump", 0), found("disk-soon-full", 0))
    assert len({each.incident for each in told}) == 3
    assert all(each.action is Action.WARN for each in told)


def test_what_makes_a_node_slow_is_one_incident_whatever_more_is_learned() -> None:
    incidents = Incidents(Past())
    (first,) = feed(incidents, 0.0, found("slow-rank", 5))
    (second,) = feed(incidents, 9.0, found("slow-node", 4, 5))
    (third,) = feed(incidents, 12.0, found("contention", 4, 5))
    assert [each.incident for each in (second, third)] == [first.incident] * 2
    assert (second.ranks, third.label) == ((4, 5), Label.CONTENTION)
    (other,) = feed(incidents, 13.0, found("slow-rank", 9))
    assert other.incident != first.incident


@pytest.mark.parametrize(
    ("end", "label"), [("loss_spike_recovered", Label.SPIKE_RECOVERED), ("loss_diverged", Label.DIVERGENCE)]
)
def test_a_rise_of_the_loss_is_one_incident_however_it_ends(end: str, label: Label) -> None:
    incidents = Incidents(Past())
    (first,) = feed(incidents, 0.0, found("loss_spike"))
    assert first.action is Action.WARN
    assert (first.stage, first.label) == (Stage.SUSPICION, Label.DIVERGENCE)
    assert "not known yet" in first.sentence
    told = feed(incidents, 5.0, found(end, label=label))
    assert all((each.incident, each.label) == (first.incident, label) for each in told)
    assert [each.label for each in incidents.open] == [label]


def test_a_job_that_stands_still_has_no_slow_ranks() -> None:
    incidents = Incidents(Past())
    told = feed(incidents, 0.0, found("behind", 5), found("slow-rank", 5))
    assert [each.label for each in told] == [Label.UNKNOWN]


def test_what_is_muted_is_not_told_until_the_mute_is_over() -> None:
    incidents = Incidents(Past())
    incidents.mute(Mute(node="b", until_s=10.0))
    assert feed(incidents, 0.0, found("slow-rank", 5)) == []
    assert [v.nodes for v in feed(incidents, 1.0, found("slow-rank", 9))] == [("c",)]
    assert [v.nodes for v in feed(incidents, 11.0, found("slow-rank", 5))] == [("b",)]
    with pytest.raises(CallError, match="hide everything"):
        incidents.mute(Mute())


def test_what_is_acknowledged_is_told_again_only_when_it_is_graver_or_over() -> None:
    incidents = Incidents(Past())
    (first,) = feed(incidents, 0.0, found("behind", 5))
    incidents.acknowledge(first.incident)
    assert feed(incidents, 1.0, found("behind", 5), found("in-io", 5)) == []
    (graver,) = feed(incidents, 2.0, found("behind", 5), found("in-io", 5), overdue=True)
    assert graver.stage is Stage.VERDICT
    with pytest.raises(CallError, match="no open incident"):
        incidents.acknowledge("9.9")


def tempered(past: Past, *evidence: Evidence, now_s: float = 1000.0, n_ranks: int = 64) -> tuple[Label, Owner, Action]:
    ruling = judge(list(evidence))
    assert ruling is not None
    where = ruling.nodes or tuple(sorted({NODE_OF[rank] for rank in ruling.ranks}))
    after = temper(ruling, where, past, accused=len(ruling.ranks), n_ranks=n_ranks, now_s=now_s)
    return after.label, after.owner, after.action


def before(label: Label, node: str, at_s: float = 900.0, action: Action = Action.RESTART) -> Past:
    return Past((Entry(at_s, label, action, (node,)),))


def test_the_same_node_twice_is_suspect_and_another_node_is_not() -> None:
    killed = found("killed", 5)
    assert tempered(Past(), killed)[2] is Action.RESTART
    assert tempered(before(Label.UNKNOWN, "a"), killed)[2] is Action.RESTART
    assert tempered(before(Label.UNKNOWN, "b"), killed) == (Label.SUSPECT, Owner.NODE, Action.EVICT)
    assert tempered(before(Label.UNKNOWN, "b"), killed, now_s=8 * 86400.0)[2] is Action.RESTART


def test_a_link_of_the_network_must_fail_twice_in_five_minutes() -> None:
    line = found("line", 5, label=Label.NIC_LINK)
    assert tempered(Past(), line)[2] is Action.RESTART
    assert tempered(before(Label.NIC_LINK, "b"), line)[2] is Action.EVICT
    assert tempered(before(Label.NIC_LINK, "b", at_s=600.0), line)[2] is Action.RESTART


def test_a_second_node_is_not_replaced_within_ten_minutes() -> None:
    line = found("line", 5, label=Label.GPU_ECC)
    assert tempered(before(Label.GPU_ECC, "a", action=Action.EVICT), line)[2] is Action.RESTART
    assert tempered(before(Label.GPU_ECC, "a", at_s=100.0, action=Action.EVICT), line)[2] is Action.EVICT


def test_a_nan_that_begins_on_the_same_node_again_is_its_machine() -> None:
    nan = found("nan-source", 5)
    assert tempered(Past(), nan) == (Label.NAN, Owner.DATA, Action.ROLLBACK)
    assert tempered(before(Label.NAN, "b"), nan) == (Label.SDC, Owner.NODE, Action.EVICT)


def test_what_a_restart_has_not_cured_is_for_the_user() -> None:
    loading = (found("behind", 5), found("in-loading", 5))
    assert tempered(before(Label.DATALOADER, "a"), *loading)[2] is Action.STOP_USER


def test_when_over_a_quarter_of_the_ranks_are_accused_nobody_is() -> None:
    incidents = Incidents(Past())
    (told,) = feed(incidents, 0.0, found("line", 0, 4, 8, 9, label=Label.GPU_ECC))
    assert (told.ranks, told.nodes, told.owner, told.action) == ((), (), Owner.NOBODY, Action.RESTART)
    (one,) = feed(Incidents(Past()), 0.0, found("line", 0, label=Label.GPU_ECC))
    assert (one.nodes, one.action) == (("a",), Action.EVICT)


def test_the_first_verdict_of_an_incident_is_not_its_own_repetition() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("killed", 5))
    (told,) = feed(incidents, 1.0)
    assert told.label is Label.UNKNOWN
    assert feed(incidents, 2.0) == []
    assert incidents.past.entries == (Entry(1.0, Label.UNKNOWN, Action.RESTART, ("b",)),)


def test_a_rank_that_is_silent_while_it_ends_of_an_error_has_raised() -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("silent", 5))
    feed(incidents, 1.0, found("raised", 5))
    (told,) = feed(incidents, 2.0)
    assert (told.label, told.action, told.ranks) == (Label.USER_CODE, Action.STOP_USER, (5,))
    incidents = Incidents(Past())
    feed(incidents, 0.0, found("silent", 5))
    (told,) = feed(incidents, 1.0, found("raised", 6))  # it has waited for the silent one
    assert (told.label, told.ranks) == (Label.LIB_BUG, (5,))


@pytest.mark.parametrize(
    ("first", "then", "label", "ranks"),
    [
        ("told-to-end", "raised", Label.USER_CODE, (4,)),
        ("ended-together", "raised", Label.SCHED, ()),
        ("killed", "raised", Label.UNKNOWN, (5,)),
    ],
)
def test_who_was_told_to_end_gives_way_to_whoever_is_seen_to_have_failed_a_look_later(
    first: str, then: str, label: Label, ranks: tuple[int, ...]
) -> None:
    incidents = Incidents(Past())
    feed(incidents, 0.0, found(first, 5))
    told = feed(incidents, 0.5, found(then, 4)) + feed(incidents, 1.5)
    assert [(each.label, each.ranks) for each in incidents.open] == [(label, ranks)]
    assert told
