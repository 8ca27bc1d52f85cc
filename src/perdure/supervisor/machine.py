"""The life of a job as a table. No processes, no sockets, no clock: events in, actions out.

Theory. A job goes from START (nodes gather) over WARM-UP (they are checked) to EXECUTE (an attempt: all ranks of all
places run). However an attempt ends, it goes through VERIFY: every process of it is ended for certain and what happened
is judged. From there it goes to an end, or over RECOVER (back-off, other nodes in the places of bad ones) to WARM-UP
again. So there is one way into an attempt and one way out of it, and "two attempts at once" needs no check of its own:
VERIFY is left when each node of the attempt has said that nothing is left (`Over`), or is *fenced*, that is has been
silent for longer than the lease after which its launcher ends the ranks by itself.

What must survive the controller is in `Job`, a plain value, which the driver journals before it carries out a single
action. What launchers know better than anybody (who is there, which ranks run or have ended) is not in it: a controller
that comes back hears it from them (`Joined` with what they hold), and orders are idempotent: a launcher does nothing
twice for the same attempt, and reports again what it did. So it does not matter which of the last orders arrived.

Every event may come late, twice or never. Events of other attempts than the current are ignored; an end of a rank that
is known changes nothing; a node that is lost and comes back is told to end what it still runs.

Nothing waits for ever: ranks that are ending have a grace, checks a deadline, back-off a bound, missing nodes
``wait_s``; restarts without a new step are counted (`budget`), and a repeated failure ends the job before that
(`verdict`).

The watcher names, this table acts: a verdict that is sure and asks for something ends the attempt, once. Whoever sees
a fault first, a launcher or the watcher, ends the attempt; what the other says of it afterwards is told, and adds a
name to what is said. Ends of ranks are for launchers to see alone.

Places. A node keeps its place over attempts, and with it its ranks, their neighbours and their memory. A hole is filled
by a spare, by lowest join order. If none comes within ``shrink_s`` and the fewest nodes are there, places close up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from perdure.events import (
    AttemptStarted,
    AttemptStopped,
    Fact,
    JobFailed,
    JobStopped,
    JobSucceeded,
    NodeCordoned,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Notice,
    PlaceTaken,
    VerdictTold,
)
from perdure.supervisor.attempt import Attempt, Member
from perdure.supervisor.config import Spec
from perdure.supervisor.examination import Examination
from perdure.supervisor.job import Ending, Job, NodeFacts, State
from perdure.supervisor.places import choose
from perdure.supervisor.telling import last_words
from perdure.supervisor.verdict import Act, Evidence, LateRank, Named, Verdict, judge
from perdure.supervisor.vocabulary import (
    Action,
    Asked,
    Drain,
    Event,
    Examined,
    Finish,
    Holding,
    Joined,
    Judged,
    Kill,
    Late,
    Left,
    Over,
    Progressed,
    RankEnded,
    Say,
    Start,
    Terminate,
    Tick,
    Uncordon,
    Watching,
)

__all__ = ["TABLE", "Machine", "Row"]

_SAME_REQUEST_S: Final = 0.5
_PATIENCE_S: Final = 5.0
_SURE: Final = 0.8
_REMEMBERED: Final = 32


class Machine:
    """The state of one job. ``now`` is monotonic seconds; ``wall`` are seconds since 1970, for cordons alone.

    ``again`` says that the `Job` is one that another controller has left.
    """

    def __init__(self, spec: Spec, job: Job, *, now: float, rng: random.Random, again: bool = False) -> None:
        self.spec, self.job = spec, job
        self._rng = rng
        self._now = self._began_s = now
        self._wall = 0.0
        self._out: list[Action] = []
        self._here: dict[str, NodeFacts] = {}
        self._last_joined_s = now
        self._asked_s = now
        self._kill_now = False
        self._due_s = now
        self._verify_s = now
        self._exam: Examination | None = None
        self._told_attempt = -1
        self._told_waiting = False
        self._since_s = now
        self._verdict: Judged | None = None
        self._pointed: dict[str, tuple[int, ...]] = {}
        "Ranks that the watcher's open incidents of this attempt accuse, suspicions too."
        self._watched = False
        if again and job.state in (State.EXECUTE, State.VERIFY):
            self._attempt = self._new_attempt(resumed_s=now, lost=job.lost)
        else:
            self._attempt = Attempt(job.attempt, waits=spec.waits, name_nodes=self._several())

    def handle(self, event: Event, now: float, *, wall: float = 0.0) -> list[Action]:
        """Take one event; return what to do, in order. `job` is then what must be journaled before it is done."""
        self._now, self._wall, self._out = now, wall or self._wall, []
        if not self.job.state.final:
            self._note(event)
            while (row := self._next_row()) is not None:
                row.act(self)
                if row.then is not self.job.state:
                    self._since_s, self._told_waiting = now, False
                    self._set(state=row.then)
        return self._out

    def here(self) -> dict[str, NodeFacts]:
        """The nodes whose launchers are connected."""
        return dict(self._here)

    def roster(self) -> tuple[NodeFacts, ...]:
        """The nodes that have a voice: all that have joined in this run and have not been drained."""
        return tuple(node for node in self.job.roster if node.name not in self.job.draining or node.name in self._here)

    def refuses_to_drain(self, name: str) -> str | None:
        """Why node ``name`` cannot be left without ending the job; None if it can."""
        places = [node.name for node in self.job.places]
        if name not in places:
            return None
        others = [node.name for node in self._usable() if node.name != name]
        if len(others) >= self.spec.min_nodes:
            return None
        return (
            f"without {name} there would be {_count(len(others), 'node')}, and the job needs {self.spec.min_nodes}: "
            "start a launcher on another node first, or stop the job"
        )

    def _next_row(self) -> Row | None:
        return next((row for row in TABLE if row.state is self.job.state and row.test(self)), None)

    # --- what happened -----------------------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        match event:
            case Joined(node, holding):
                self._joined(node, holding)
            case Left(name, how, heard_s):
                self._left(name, how, heard_s)
            case RankEnded():
                self._rank_ended(event)
            case Over():
                self._over(event)
            case Progressed(_, attempt, step):
                if attempt == self.job.attempt:
                    self._progressed(step)
            case Late():
                self._ranks_late(event)
            case Examined():
                if self._exam is not None:
                    self._exam.found(event)
            case Asked(number, by):
                self._asked(number, by)
            case Drain(name):
                if name not in self.job.draining:
                    self._set(draining=(*self.job.draining, name))
            case Uncordon(name):
                self._set(
                    cordon=self.job.cordon.lifted(name),
                    draining=tuple(each for each in self.job.draining if each != name),
                )
            case Judged():
                self._watcher_said(event)
            case Watching(on):
                self._watched = on
            case Tick():
                pass
        self._time_passed()

    def _progressed(self, step: int) -> None:
        if self._attempt.first_step is None:
            self._attempt.first_step = step  # what was restored, or just after it
        if step > self.job.best_step:
            self._set(
                best_step=step,
                budget=self.job.budget.progressed(),
                past=self.job.past.cleared(),
                restore_before=None,
            )

    def _joined(self, node: NodeFacts, holding: Holding) -> None:
        name = node.name
        if self._several() and all(each.name != name for each in self.job.roster):
            self._say(NodeJoined(node=name, host=node.host, nproc=node.nproc))
        self._last_joined_s = self._now
        self._here[name] = node
        self._enrol(node)
        member = self._attempt.member(name)
        current = holding.attempt == self.job.attempt and self.job.attempt >= 0
        if member is None or not current:
            if holding.attempt >= 0 and holding.over is None:
                self._out.append(Kill(name, holding.attempt))
            if member is None:
                return
        if node.pid != member.node.pid:  # another launcher: what the one before it ran is lost with it
            member.gone(self._now, relink_until_s=self._now)
            member.relink_until_s = self._now
            if node.machine and node.machine == member.node.machine:  # it holds the lock of the one before it
                member.dead_s = self._now
            return
        member.left_s = None
        if current:
            for ended in holding.ended:
                self._rank_ended(ended)
            if holding.over is not None:
                self._over(holding.over)
        elif self.job.state is State.EXECUTE and not member.lost and holding.attempt < self.job.attempt:
            self._start_on(member)  # the order was journaled, and never arrived
        elif holding.attempt < self.job.attempt:
            member.over = Over(node=name, attempt=self.job.attempt)  # it never started, and is not told to any more
        if member.over is None and self.job.ending is not None:  # an order of the link before may not have arrived
            if self._attempt.killed or self._why() == "done":
                self._out.append(Kill(name, self.job.attempt))
            else:
                self._out.append(Terminate(name, self.job.attempt, self._why() == "failed"))

    def _enrol(self, node: NodeFacts) -> None:
        roster = self.job.roster
        names = [each.name for each in roster]
        if node.name not in names:
            self._set(roster=(*roster, node))
        elif roster[names.index(node.name)] != node:
            self._set(roster=tuple(node if each.name == node.name else each for each in roster))

    def _left(self, name: str, how: str, heard_s: float) -> None:
        self._here.pop(name, None)
        member = self._attempt.member(name)
        if member is None and not self.job.state.final:
            self._say(Notice(text=f"node {name}, which had no ranks, is gone"))
        if member is not None:
            relink_s = self.spec.waits.relink_s if how == "closed" else 0.0
            member.gone(heard_s, relink_until_s=self._now + relink_s)
            if how == "dead":
                member.dead_s, member.relink_until_s = self._now, self._now
        if self._exam is not None:
            self._exam.gone(name)

    def _rank_ended(self, event: RankEnded) -> None:
        n_before = len(self._attempt.deaths)
        told = self._attempt.rank_ended(event, self.job.ending, now=self._now)
        if told is not None:
            self._say(told)
        if len(self._attempt.deaths) > n_before and self._why() in ("asked", "drained"):
            # its part of the step is lost: no use in waiting for long
            self._due_s = min(self._due_s, self._now + self.spec.waits.broken_drain_s)

    def _over(self, event: Over) -> None:
        member, here = self._attempt.member(event.node), self._here.get(event.node)
        if member is None or here is None or here.pid != member.node.pid:
            return  # another launcher knows nothing of the ranks of the one before it
        if self._attempt.over(event) and event.port:
            self._here[event.node] = msgspec.structs.replace(here, port=event.port)

    def _ranks_late(self, event: Late) -> None:
        if self.job.state is State.EXECUTE:
            for told in self._attempt.ranks_late(event, now=self._now):
                self._say(told)

    def _watcher_said(self, said: Judged) -> None:
        """Tell what the watcher says; if it is sure, and nothing else has happened to the attempt, act on it."""
        fields = msgspec.structs.asdict(said)
        del fields["attempt"]
        self._say(VerdictTold(**fields))
        if said.attempt == self.job.attempt and self.job.state is State.EXECUTE:
            self._pointed[said.incident] = () if said.stage == "cleared" else said.ranks
        if said.stage != "verdict" or said.attempt != self.job.attempt:
            return
        self._verdict = said
        sure = said.confidence >= _SURE and said.action != "warn" and self.spec.act_on_verdicts == "all"
        quiet = self.job.state is State.EXECUTE and not self._attempt.deaths and not self._attempt.lost()
        if not sure or not quiet or self._acted() is not None:
            return
        where = {member.name for member in self._attempt for rank in said.ranks if member.has(rank)}
        named = Named(
            attempt=said.attempt,
            incident=said.incident,
            action=said.action,
            label=said.label,
            sentence=said.sentence,
            rank=said.ranks[0] if said.ranks else None,
            nodes=tuple(each.name for each in self._attempt if each.name in (*said.nodes, *where)),
            step=said.step,
        )
        self._set(acted=(*self.job.acted, named)[-_REMEMBERED:])

    def _acted(self) -> Named | None:
        """The verdict of the watcher by which this attempt ends, if there is one."""
        return next((each for each in self.job.acted if each.attempt == self.job.attempt), None)

    def _asked(self, number: int, by: str) -> None:
        if not self.job.asked:
            self._set(asked=number)
            self._asked_s = self._now
            who = f" by {by}" if by else ""
            if not self.job.state.final:
                self._say(Notice(text=f"asked to stop{who}: ranks save and end; asked once more, they are killed"))
        elif self._now - self._asked_s > _SAME_REQUEST_S:
            self._kill_now = True

    def _time_passed(self) -> None:
        for member in self._attempt.newly_lost(self._now):
            self._set(lost=(*self.job.lost, member.name))
            self._say(NodeLost(node=member.name, ranks=member.node.nproc))
        waiting = self.job.state in (State.START, State.RECOVER) and self._now >= self._due_s
        if waiting and not self._told_waiting and self._now - max(self._since_s, self._due_s) >= _PATIENCE_S:
            self._told_waiting = True
            there = f"{_count(len(self._usable()), 'node')} of {self.spec.min_nodes}"
            if len(self._usable()) < self.spec.min_nodes:
                self._say(Notice(text=f"{there} can be used; waiting up to {self.spec.waits.wait_s:g} s for more"))

    # --- what rows ask ------------------------------------------------------------------------------------------------

    def _usable(self) -> list[NodeFacts]:
        """The nodes that may have a place, the earliest first."""
        return [
            self._here[name]
            for name in self._order_of_here()
            if name not in self.job.draining and not self.job.cordon.is_cordoned(name, now=self._wall)
        ]

    def _order_of_here(self) -> list[str]:
        known = [node.name for node in self.job.roster if node.name in self._here]
        return sorted(known, key=lambda name: self._here[name].index if self._here[name].index >= 0 else 1 << 30)

    def _chosen(self) -> tuple[NodeFacts, ...] | None:
        """The nodes of the next attempt by place; None while more should be waited for."""
        return choose(
            before=[node.name for node in self.job.places],
            usable=self._usable(),
            fewest=self.spec.min_nodes,
            most=self.spec.max_nodes,
            hurry=self._hurry(),
        )

    def _hurry(self) -> bool:
        """Whether the fewest nodes are enough now."""
        if self.job.places:
            return self._now - self._since_s >= self.spec.waits.shrink_s
        return self._now - self._last_joined_s >= self.spec.waits.join_s

    def _enough(self) -> bool:
        if self._now < self._due_s:
            return False
        chosen = self._chosen()
        if chosen is None or not self._has_a_say():
            return False
        if self.job.places or self._hurry():
            return True
        return len(self._usable()) >= len(chosen) + self.spec.spares

    def _has_a_say(self) -> bool:
        """Whether no other controller can have been chosen: at least half of the roster is here."""
        return not self.spec.takeover or 2 * len(self._here) >= len(self.roster())

    def _waited_too_long(self) -> bool:
        return self._now - max(self._since_s, self._due_s) >= self.spec.waits.wait_s

    def _is_asked(self) -> bool:
        return self.job.asked != 0

    def _place_is_lost(self) -> bool:
        return any(node.name not in self._here for node in self.job.places)

    def _exam_is_bad(self) -> bool:
        return self._exam is not None and self._exam.over(self._now) and bool(self._exam.bad())

    def _exam_is_good(self) -> bool:
        return self._exam is None or (self._exam.over(self._now) and not self._exam.bad())

    def _exam_goes_on(self) -> bool:
        return self._exam is not None and self._exam.next_round_due(self._now)

    def _all_well(self) -> bool:
        return self._attempt.all_well()

    def _has_failed(self) -> bool:
        return self._attempt.has_failed(self._now)

    def _a_node_is_lost(self) -> bool:
        return bool(self._attempt.lost())

    def _a_launcher_gave_up(self) -> bool:
        return bool(self._attempt.ended_by_launcher())

    def _a_rank_is_late(self) -> bool:
        return self._attempt.is_late(self._now)

    def _the_watcher_is_sure(self) -> bool:
        return self._acted() is not None

    def _a_place_drains(self) -> bool:
        return any(node.name in self.job.draining for node in self.job.places)

    def _time_to_kill(self) -> bool:
        if self._attempt.killed:
            return False
        hurry = self._kill_now and self.job.asked != 0
        return self._attempt.all_ended() or self._now >= self._due_s or hurry

    def _all_over(self) -> bool:
        return self._attempt.all_over(self._now)

    def _why(self) -> str:
        return self.job.ending.why if self.job.ending is not None else "failed"

    def _left_behind(self) -> bool:
        return self._all_over() and bool(self._attempt.left_behind())

    def _over_and_asked(self) -> bool:
        return self._all_over() and self.job.asked != 0

    def _over_and_done(self) -> bool:
        return self._all_over() and self._why() == "done"

    def _over_and_drained(self) -> bool:
        return self._all_over() and self._why() == "drained"

    def _over_with_suspects(self) -> bool:
        return self._all_over() and self._exam is None and bool(self._suspects())

    def _suspects(self) -> list[NodeFacts]:
        verdict = self._judged()
        if not self.spec.checks or not verdict.suspects or len(self.job.places) == 1:
            return []
        return [self._here[name] for name in verdict.suspects if name in self._here]

    def _over_and_hopeless(self) -> bool:
        return self._all_over() and self._exam_is_over() and self._given_up() is not None and self._has_a_name()

    def _has_a_name(self) -> bool:
        """Whether the watcher has named what happened, or has had the time to."""
        if not self._watched or not self._attempt.deaths or self._acted() is not None:
            return True
        return self._verdict_of_now() is not None or self._now - self._verify_s >= self.spec.waits.name_s

    def _verdict_of_now(self) -> Judged | None:
        """What the watcher said last of this attempt, and was sure of."""
        said = self._verdict
        return said if said is not None and said.attempt == self.job.attempt and said.action != "warn" else None

    def _in_other_words(self) -> str:
        """What the watcher says of what others have seen first, as the tail of a sentence."""
        said = self._verdict_of_now()
        return "" if said is None or self._acted() is not None else f" (watcher: {said.label}, {said.sentence})"

    def _over_and_worth_a_try(self) -> bool:
        return self._all_over() and self._exam_is_over() and self._given_up() is None

    def _exam_is_over(self) -> bool:
        return self._exam is None or self._exam.over(self._now)

    def _judged(self) -> Verdict:
        """What happened, by what is known of it now."""
        bad = self._exam.bad() if self._exam is not None and self._exam.over(self._now) else {}
        return judge(
            Evidence(
                deaths=tuple(self._attempt.deaths),
                left=tuple(self._attempt.left_early),
                lost=self._attempt.lost(),
                late=self._late(),
                bad=tuple(bad.items()),
                named=self._acted(),
                rolled_back=tuple(
                    each.step
                    for each in self.job.acted
                    if each.action == "rollback" and each.attempt < self.job.attempt
                ),
                out_of_memory=tuple(sorted(self._attempt.out_of_memory)),
                n_nodes=len(self.job.places),
            ),
            self.job.past,
            allow_skip=self.spec.skip_bad_batch,
        )

    def _late(self) -> tuple[LateRank, ...]:
        """The ranks that are late, the likeliest cause first: whom the watcher suspects, if all are late at once."""
        pointed = {rank for ranks in self._pointed.values() for rank in ranks}
        return tuple(sorted(self._attempt.late(), key=lambda each: each.rank not in pointed))

    def _given_up(self) -> str | None:
        """Why there is no other attempt; None if there is one."""
        verdict = self._judged()
        if self.spec.max_restarts == 0:
            return "no restart is allowed (max_restarts is 0)"
        if verdict.act is Act.STOP:
            return verdict.sentence
        if self.job.budget.spent(self.spec.max_restarts):
            return f"{self.job.budget.restarts} restarts in a row brought no new step"
        return None

    # --- what rows do -------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        chosen = self._chosen()
        assert chosen is not None
        before = [node.name for node in self.job.places]
        for place, node in enumerate(chosen):
            if before and node.name not in before:
                self._say(
                    PlaceTaken(place=place, node=node.name, before=before[place] if place < len(before) else None)
                )
        if before and len(chosen) != len(before):
            self._say(Notice(text=f"going on with {_count(len(chosen), 'node')}, {len(before)} before"))
        self._set(places=chosen)
        new = [node for node in chosen if node.name not in self.job.checked]
        names = {node.name: self.spec.checks for node in new}
        for node in chosen:
            if node.gpus and node.name not in names and self.job.attempt >= 0:
                names[node.name] = ("gpu-memory",)  # what was ended may still hold it
        self._examine(names, list(chosen) if new and self.spec.pair_checks else [])

    def _examine(self, names: Mapping[str, tuple[str, ...]], paired: list[NodeFacts]) -> None:
        nodes = [self._here[name] for name in names if name in self._here]
        exam = Examination(names, nodes, paired, within_s=self.spec.check_s)
        self._exam = None if exam.over(self._now) else exam
        if self._exam is not None:
            self._out += self._exam.orders(self._now)

    def _next_round(self) -> None:
        assert self._exam is not None
        self._out += self._exam.orders(self._now)

    def _warm_up_failed(self) -> None:
        bad = self._exam.bad() if self._exam is not None and self._exam.over(self._now) else {}
        self._exam = None
        for name, sentence in bad.items():
            self._cordon(name, sentence)
        self._due_s = self._now

    def _execute(self) -> None:
        places = self.job.places
        if self._exam is not None:
            for name, sentence in self._exam.slow().items():
                self._say(Notice(text=f"node {name} is slow: {sentence}"))
            self._set(checked=tuple(sorted({*self.job.checked, *(node.name for node in places)})))
        self._exam = None
        self._set(attempt=self.job.attempt + 1, ending=None, lost=())
        # what a launcher said last is newer than what it said when its place was chosen: its port, above all
        self._set(places=tuple(self._here.get(node.name, node) for node in places))
        self._attempt = self._new_attempt()
        for member in self._attempt:
            self._start_on(member)
        self._say(AttemptStarted(attempt=self.job.attempt, world=self._attempt.world, job=self.job.name))

    def _new_attempt(self, *, resumed_s: float | None = None, lost: Sequence[str] = ()) -> Attempt:
        self._pointed = {}
        return Attempt(
            self.job.attempt,
            self.job.places,
            waits=self.spec.waits,
            name_nodes=self._several(),
            resumed_s=resumed_s,
            lost=lost,
        )

    def _several(self) -> bool:
        """Whether there is a node to be named."""
        return self.spec.max_nodes + self.spec.spares > 1

    def _start_on(self, member: Member) -> None:
        first = self.job.places[0]
        self._out.append(
            Start(
                node=member.name,
                attempt=self.job.attempt,
                place=member.place,
                n_places=len(self.job.places),
                base=member.base,
                world=self._attempt.world,
                master_addr=first.host,
                master_port=first.port,
                resume_must=self.spec.resume,
                restore_before=self.job.restore_before,
                skip=self.job.skip,
                may_skip=self.spec.skip_bad_batch,
            )
        )

    def _end(self, ending: Ending, *, grace_s: float, polite: bool = True) -> None:
        self._set(ending=ending)
        self._attempt.killed = False
        self._verify_s = self._now
        self._due_s = self._now + grace_s
        for member in self._attempt:
            if polite and member.name in self._here and not member.all_ended:
                self._out.append(Terminate(member.name, self.job.attempt, ending.why == "failed"))

    def _end_done(self) -> None:
        self._end(Ending(why="done"), grace_s=0.0, polite=False)

    def _end_asked(self) -> None:
        self._end(Ending(why="asked", signal=self.job.asked), grace_s=self.spec.grace_s)

    def _end_drained(self) -> None:
        names = [node.name for node in self.job.places if node.name in self.job.draining]
        self._say(Notice(text=f"draining {', '.join(names)}: all ranks stop at a saved step"))
        self._end(Ending(why="drained", sentence=", ".join(names)), grace_s=self.spec.grace_s)

    def _end_failed(self) -> None:
        self._end(Ending(why="failed"), grace_s=self.spec.stop_grace_s)

    def _end_given_up(self) -> None:
        names = ", ".join(self._attempt.ended_by_launcher())
        self._say(Notice(text=f"{names} had lost this controller for too long, and ended its ranks"))
        self._end_failed()

    def _kill(self) -> None:
        self._attempt.killed = True
        for member in self._attempt:
            if member.name in self._here and member.over is None:
                self._out.append(Kill(member.name, self.job.attempt))

    def _examine_suspects(self) -> None:
        suspects = self._suspects()
        self._say(Notice(text=f"checking {', '.join(node.name for node in suspects)}"))
        self._examine({node.name: self.spec.checks for node in suspects}, [])

    def _recover(self) -> None:
        self._stopped()
        verdict = self._judged()
        if self._exam is not None:
            for name, sentence in self._exam.bad().items():
                self._cordon(name, sentence)
        for name in verdict.nodes:
            if self._exam is not None and name in self._exam.bad():
                continue
            if self._acted() is not None and (refusal := self._cannot_do_without(name)) is not None:
                self._say(Notice(text=refusal))
            else:
                self._cordon(name, verdict.sentence)
        self._exam = None
        budget, delay_s = self.job.budget.spend(chance=self._rng.random())
        self._due_s = self._now + delay_s
        self._set(budget=budget, past=self.job.past.after(verdict), reason=verdict.sentence)
        if verdict.act is Act.ROLL_BACK and verdict.before is not None:
            # the second time it must go back further than to what this attempt began from
            again = self.job.restore_before is not None and self._attempt.first_step is not None
            before = min(verdict.before, self._attempt.first_step or 1) if again else verdict.before
            skip = () if verdict.skip is None else (verdict.skip,)
            self._set(restore_before=max(1, before), skip=(*self.job.skip, *skip))
            if self.job.best_step == 0:
                self._set(reason=f"{verdict.sentence}; {self._begins_anew()}")
        when = "at once" if delay_s == 0 else f"in {delay_s:.1f} s"
        lines = last_words(self._attempt.deaths, name_nodes=self._several())
        text = f"{self.job.reason}{self._in_other_words()}; starting all ranks again {when}"
        self._say(Notice(text=text), lines=lines)

    def _begins_anew(self) -> str:
        """What a roll-back comes to where no rank has ever told a step: only those with `attach` do."""
        skips = "; no batch is left out" if self.spec.skip_bad_batch else ""
        return (
            "but no checkpoint of perdure is known, as no rank has told a step (perdure.attach does): the job begins "
            f"anew, or where its script goes on by itself{skips}"
        )

    def _recover_drained(self) -> None:
        self._stopped()
        for node in self.job.places:
            if node.name in self.job.draining:
                self._say(NodeDrained(node=node.name, step=self.job.best_step))
        self._due_s = self._now

    def _stopped(self) -> None:
        if self._told_attempt >= self.job.attempt:
            return
        self._told_attempt = self.job.attempt
        left = self._attempt.left_behind()
        reason = f"{left} cannot be killed" if left else "none of its processes is left"
        self._say(
            AttemptStopped(
                attempt=self.job.attempt,
                reason=reason,
                seconds=self._now - self._verify_s,
                killed=self._attempt.n_killed(),
            )
        )

    def _cordon(self, name: str, sentence: str) -> None:
        """Take a node out. If too many are out already it is used all the same, and not checked again."""
        cordon, refusal = self.job.cordon.cordoned(name, sentence, now=self._wall, n_nodes=len(self.job.roster))
        passed = {each for each in self.job.checked if each != name} | ({name} if refusal else set())
        self._set(cordon=cordon, checked=tuple(sorted(passed)))
        self._say(NodeCordoned(node=name, reason=sentence) if refusal is None else Notice(text=refusal))

    def _cannot_do_without(self, name: str) -> str | None:
        """Why the job starts again on node ``name`` although it is at fault; None if it need not."""
        others = [node.name for node in self._usable() if node.name != name]
        if len(others) >= self.spec.min_nodes:
            return None
        there = f"without it there would be {_count(len(others), 'node')}, and the job needs {self.spec.min_nodes}"
        return f"node {name} should be replaced, and there is none to take its place: {there}. It is used again"

    def _succeed(self) -> None:
        self._stopped()
        self._set(exit_code=0)
        self._say(JobSucceeded(attempts=self.job.attempt + 1, seconds=self._now - self._began_s))
        self._out.append(Finish(0))

    def _stop(self) -> None:
        self._stopped()
        took_s = self._now - self._asked_s
        code = 128 + self.job.asked
        self._set(exit_code=code)
        self._say(JobStopped(signal=self.job.asked, seconds=took_s, killed=self._attempt.n_killed()))
        self._out.append(Finish(code))

    def _fail(self) -> None:
        self._stopped()
        verdict = self._judged()
        if self._left_behind():
            left = self._attempt.left_behind()
            reason = f"processes {', '.join(map(str, left))} cannot be killed and may hold memory or a device"
        else:
            reason = (self._given_up() or verdict.sentence) + self._in_other_words()
        cause = verdict.cause
        self._set(reason=reason, exit_code=1 if cause is None else cause.exit_code)
        fact = JobFailed(
            reason=reason,
            attempts=self.job.attempt + 1,
            rank=None if cause is None else cause.rank,
            code=None if cause is None else cause.code,
            signal=None if cause is None else cause.signal,
        )
        self._say(fact, lines=last_words(self._attempt.deaths, name_nodes=self._several()))
        self._out.append(Finish(self.job.exit_code or 1))

    def _fail_waiting(self) -> None:
        names = ", ".join(self._order_of_here()) or "none"
        reason = (
            f"waited {self.spec.waits.wait_s:g} s for {_count(self.spec.min_nodes, 'node')}; there are {names}"
            " (start a launcher on more nodes, or lower MIN of --nodes)"
        )
        self._set(reason=reason, exit_code=75)
        self._say(JobFailed(reason=reason, attempts=self.job.attempt + 1))
        self._out.append(Finish(75))

    def _say(self, fact: Fact, *, lines: tuple[str, ...] = ()) -> None:
        self._out.append(Say(fact, lines))

    def _set(self, **changes: object) -> None:
        self.job = msgspec.structs.replace(self.job, **changes)


class Row(NamedTuple):
    """In ``state``, when ``test`` holds, go to ``then`` and do ``act``. The first row that holds is taken."""

    state: State
    when: str
    then: State
    does: str
    test: Callable[[Machine], bool]
    act: Callable[[Machine], None]


S, M = State, Machine
TABLE: Final = (
    Row(S.START, "asked to stop", S.STOPPED, "release the nodes", M._is_asked, M._stop),
    Row(S.START, "enough nodes", S.WARM_UP, "give places, check the nodes", M._enough, M._warm_up),
    Row(S.START, "too few nodes for too long", S.FAILED, "tell who is there", M._waited_too_long, M._fail_waiting),
    Row(S.WARM_UP, "asked to stop", S.STOPPED, "release the nodes", M._is_asked, M._stop),
    Row(S.WARM_UP, "a node is gone", S.RECOVER, "choose again", M._place_is_lost, M._warm_up_failed),
    Row(S.WARM_UP, "a check failed", S.RECOVER, "cordon the node", M._exam_is_bad, M._warm_up_failed),
    Row(S.WARM_UP, "another round of checks", S.WARM_UP, "order it", M._exam_goes_on, M._next_round),
    Row(S.WARM_UP, "all checks passed", S.EXECUTE, "start all ranks", M._exam_is_good, M._execute),
    Row(S.EXECUTE, "all ranks ended well", S.VERIFY, "end what they left", M._all_well, M._end_done),
    Row(S.EXECUTE, "a rank failed", S.VERIFY, "end the others", M._has_failed, M._end_failed),
    Row(S.EXECUTE, "a node is lost", S.VERIFY, "end the others", M._a_node_is_lost, M._end_failed),
    Row(S.EXECUTE, "a launcher gave up", S.VERIFY, "end the others", M._a_launcher_gave_up, M._end_given_up),
    Row(S.EXECUTE, "a rank is late", S.VERIFY, "end all", M._a_rank_is_late, M._end_failed),
    Row(S.EXECUTE, "the watcher is sure", S.VERIFY, "end all", M._the_watcher_is_sure, M._end_failed),
    Row(S.EXECUTE, "asked to stop", S.VERIFY, "let ranks save", M._is_asked, M._end_asked),
    Row(S.EXECUTE, "a node drains", S.VERIFY, "let ranks save", M._a_place_drains, M._end_drained),
    Row(S.VERIFY, "ended, or grace over", S.VERIFY, "kill what is left", M._time_to_kill, M._kill),
    Row(S.VERIFY, "a process cannot be killed", S.FAILED, "name it", M._left_behind, M._fail),
    Row(S.VERIFY, "over, asked to stop", S.STOPPED, "release the nodes", M._over_and_asked, M._stop),
    Row(S.VERIFY, "over, all ended well", S.SUCCEEDED, "release the nodes", M._over_and_done, M._succeed),
    Row(S.VERIFY, "over, drained", S.RECOVER, "leave the node", M._over_and_drained, M._recover_drained),
    Row(S.VERIFY, "over, a node is suspect", S.VERIFY, "check it", M._over_with_suspects, M._examine_suspects),
    Row(S.VERIFY, "another round of checks", S.VERIFY, "order it", M._exam_goes_on, M._next_round),
    Row(S.VERIFY, "over, no use in another try", S.FAILED, "show the cause", M._over_and_hopeless, M._fail),
    Row(S.VERIFY, "over, worth another try", S.RECOVER, "cordon, back off", M._over_and_worth_a_try, M._recover),
    Row(S.RECOVER, "asked to stop", S.STOPPED, "release the nodes", M._is_asked, M._stop),
    Row(S.RECOVER, "back-off over, enough nodes", S.WARM_UP, "fill the places", M._enough, M._warm_up),
    Row(S.RECOVER, "too few nodes for too long", S.FAILED, "tell who is there", M._waited_too_long, M._fail_waiting),
)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
