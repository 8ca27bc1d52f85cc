"""Sort what was told into topics: when it is time, by one worker at a time, and so that nothing can be lost.

A batch is what no topic has yet. It stays staged, and is found by search, until one transaction has put each fact of it
somewhere; a fact told in the meantime is simply of the next batch. Who may work is a row with an expiry in the ledger;
the transaction looks at it once more, so that a worker that was thought dead changes nothing. The order of a run:

1. take the lease; take in what people edited in documents; let rules settle what replaces what;
2. read a batch; plan it, by the model or by rules, outside any transaction; judge the plan;
3. in one transaction: the lease is mine, the topics have their revisions, the facts are still staged: carry it out;
4. cut and join topics that were touched, in the same way; write the documents, which follow from the ledger.

A worker that is killed leaves 3 done or not done, and a lease that the next one takes once it has run out (at once on
the same machine, where a file lock shows that its holder is gone); documents are caught up by whoever opens the memory.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perdure.clock import Deadline
from perdure.errors import Bug, CallError, DeadlineExceeded, Superseded
from perdure.memory.carry_out import carry_out
from perdure.memory.documents import Documents
from perdure.memory.lease import LEASE_S, leased, renew, still_held
from perdure.memory.ledger import Ledger
from perdure.memory.model_planner import MAX_FACTS, MAX_TOPICS, Shown, advise, model_name
from perdure.memory.plan import Alias, Assign, Merge, Op, Plan, Retitle, Split, Summarise, folded
from perdure.memory.powers import ChatModel
from perdure.memory.records import Change, Fact, Topic
from perdure.memory.rule_planner import SMALL_BYTES, SMALL_TOPICS, Sorting, sort, sort_plainly
from perdure.memory.steps import Journal, add_change
from perdure.memory.subjects import subjects
from perdure.memory.tidying import cut, join
from perdure.memory.topic_store import before_of, facts_of, known_for, routes, staged, topics_of
from perdure.memory.undo import change_of, keep_journal
from perdure.memory.verifying import Known, verify

__all__ = ["Consolidator", "Due", "When"]

_BATCH: Final = 2000
_ROUNDS: Final = 20
_STALE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """When it is time: so many tokens or facts staged, or the oldest told so long ago."""

    tokens: int = 5_000
    facts: int = 500
    age_s: float = 3_600.0


@dataclass(frozen=True, slots=True)
class Due:
    """What is staged, counted no further than it takes to know that it is time."""

    facts: int
    tokens: int
    oldest_s: float | None
    why: str = ""


@dataclass(slots=True)
class _Run:
    deadline: Deadline
    holder: str
    model: ChatModel | None
    model_s: float
    upto: int = 0
    failures: int = 0
    touched: set[int] = field(default_factory=set)


class Consolidator:
    """Sorts what one space was told. Safe from any thread; of many processes one works at a time."""

    def __init__(
        self,
        ledger: Ledger,
        documents: Documents,
        folder: Path,
        *,
        settle: Callable[[], object] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ledger = ledger
        self.documents = documents
        self._lock = folder / "consolidate.lock"
        self._settle = settle
        self._stopped = stopped

    def due(self, when: When) -> Due:
        """Return what is staged and why it is time, if it is."""
        row = (
            self.ledger.connection()
            .execute(
                "SELECT count(*), coalesce(sum(n), 0) / 4, min(told_s) FROM (SELECT length(CAST(f.text AS BLOB)) AS n,"
                " e.told_s FROM fact f JOIN evidence e ON e.id = f.evidence WHERE f.topic IS NULL"
                " AND f.text IS NOT NULL AND f.state <> 'forgotten' ORDER BY f.id LIMIT ?)",
                (max(when.facts, 5_000),),
            )
            .fetchone()
        )
        facts, tokens, oldest = int(row[0]), int(row[1]), row[2]
        why = ""
        if facts >= when.facts:
            why = f"{facts} facts are staged"
        elif facts and tokens >= when.tokens:
            why = f"{tokens} tokens are staged"
        elif oldest is not None and self.ledger.wall() - oldest >= when.age_s:
            why = f"the oldest was told {self.ledger.wall() - oldest:.0f} s ago"
        return Due(facts, tokens, oldest, why)

    def run(self, *, model: ChatModel | None = None, model_s: float = 120.0, wait_s: float = 60.0) -> Change | None:
        """Sort all that is staged now and write the documents; return the last change, or None where nothing was to do.

        ``model_s`` is how long the model may take in all; what it has not sorted by then is sorted by rules. Raises
        `DeadlineExceeded` where another worker is at it for longer than ``wait_s``.
        """
        deadline = Deadline.after(wait_s, "the worker that consolidates this space")
        with leased(self.ledger, self._lock, deadline=deadline) as holder:
            run = _Run(deadline, holder, model, time.monotonic() + model_s)
            self.documents.catch_up()
            if self._settle is not None:
                self._settle()
            # What is told from now on is of the next run, so that this one ends.
            run.upto = self.ledger.connection().execute("SELECT coalesce(max(id), 0) FROM fact").fetchone()[0]
            last: int | None = None
            while not self._stopped():
                change = self._batch(run)
                if change is None:
                    break
                last = change
                self._tidy(run)
            self.documents.catch_up()
        return change_of(self.ledger.connection(), last) if last is not None else None

    def _batch(self, run: _Run) -> int | None:
        """Sort one batch; None where nothing is staged."""
        note = ""
        for _ in range(_STALE):
            db = self.ledger.connection()
            by_model = run.model is not None and run.failures < 2 and time.monotonic() < run.model_s
            batch = staged(db, upto=run.upto, limit=MAX_FACTS if by_model else _BATCH)
            if not batch:
                return None
            sorting, known, seen, by, outcome, note = self._plan(db, batch, run, by_model=by_model)
            try:
                return self._apply(run, sorting, known, seen, kind="consolidate", by=by, outcome=outcome, note=note)
            except Superseded:
                continue  # something else has changed meanwhile: plan again from what there is now
        raise DeadlineExceeded(
            "what was to be consolidated kept changing; consolidate again when less is being written", missing=["batch"]
        )

    def _plan(
        self, db: sqlite3.Connection, batch: Sequence[Fact], run: _Run, *, by_model: bool
    ) -> tuple[Sorting, Known, dict[int, int], str, str, str]:
        """Return what to do with a batch: the sorting, what it was judged by, the revisions of topics that it was made
        from, who planned it, and how that went."""
        before = before_of(db, batch)
        room = SMALL_TOPICS - self._small(db)
        by_rules = sort(batch, before=before, routes=lambda keys: routes(db, keys), room=room)
        named = {each for op in by_rules.plan.ops for each in _topics_in(op)}
        note, outcome = "", "ok"
        if run.model is not None and not by_model:
            note, outcome = "sorted by rules: the model failed before, or its time was spent", "fallback"
        if by_model and run.model is not None:
            topics = self._candidates(db, named)
            beside = [fact for topic in topics[:8] for fact in facts_of(db, topic.id, newest=8)]
            known = known_for(db, [*batch, *beside], [topic.id for topic in topics])
            seen = {topic.id: topic.revision for topic in topics}
            renew(self.ledger, run.holder, run.model_s - time.monotonic() + LEASE_S)
            left = max(0.1, run.model_s - time.monotonic())
            advice = advise(run.model, Shown(batch, topics, beside), known, deadline_s=left)
            renew(self.ledger, run.holder, LEASE_S)
            if advice.plan is not None:
                run.failures = 0
                keys = _keys_of(advice.plan, batch, before)
                return Sorting(advice.plan, keys), known, seen, model_name(run.model), advice.outcome, advice.note
            run.failures += 1
            note, outcome = advice.note, "fallback"
        known = known_for(db, batch, named)
        faults = verify(by_rules.plan, known)
        if faults:  # a bug of the rules may cost order, never a fact
            note = f"{note}; sorted plainly, since the rules' plan was wrong: {faults[0].text}".lstrip("; ")
            return Sorting(sort_plainly(batch)), known, {}, "rules", "failed", note
        return by_rules, known, {}, "rules", outcome, note

    def _apply(
        self,
        run: _Run,
        sorting: Sorting,
        known: Known,
        seen: dict[int, int],
        *,
        kind: str,
        by: str,
        outcome: str,
        note: str,
    ) -> int:
        """Carry a plan out in one transaction; raise `Superseded`, with nothing done, where it no longer fits."""
        with self.ledger.change() as db:
            still_held(db, run.holder)
            if self._stopped():
                raise CallError(
                    "the memory was closed while it was being consolidated; what was told is kept, unsorted"
                )
            stale = {topic for topic, revision in _revisions(db, seen).items() if seen[topic] != revision}
            if stale & _concerned(sorting.plan):
                plan = Plan(tuple(op for op in sorting.plan.ops if not stale & _concerned(Plan((op,)))))
                sorting = Sorting(plan, sorting.keys)
                names = ", ".join(f"t{each}" for each in sorted(stale))
                note = f"{note}; {names} changed meanwhile and stay as they are".lstrip("; ")
            ids = list(known.facts)
            now = known_for(db, self.ledger.facts(ids).values(), known.topics, known.whole)
            if now.batch != known.batch or verify(sorting.plan, now):
                raise Superseded("the facts or topics of a plan have changed; plan again")
            if not sorting.plan.ops:
                raise Superseded("nothing of the plan is left")
            change = add_change(db, kind=kind, by=by, outcome=outcome, at_s=self.ledger.wall(), note=note)
            journal = Journal()
            run.touched |= carry_out(db, sorting.plan, keys=sorting.keys, change=change, journal=journal)
            keep_journal(db, change, journal)
        return change

    def _tidy(self, run: _Run) -> None:
        """Cut what has grown too large of what was touched, and join small topics where there are many."""
        for _ in range(_ROUNDS):
            db = self.ledger.connection()
            todo = sorted(run.touched)
            run.touched = set()
            for number in todo:
                self._cut(db, run, number)
            if not run.touched:
                break
        if self._small(self.ledger.connection()) > SMALL_TOPICS:
            self._join(run)
        run.touched = set()

    def _cut(self, db: sqlite3.Connection, run: _Run, number: int) -> None:
        row = db.execute("SELECT bytes, held FROM document WHERE topic = ?", (number,)).fetchone()
        if row is None or row[0] <= 5 * SMALL_BYTES or row[1]:
            return
        topic = topics_of(db, [number])[0]
        facts = facts_of(db, number)

        def taken(title: str) -> tuple[int, int] | None:
            there = routes(db, [folded(title)]).get(folded(title))
            size = db.execute("SELECT bytes FROM document WHERE topic = ?", (there,)).fetchone() if there else None
            return (there, size[0]) if there is not None and size is not None else None

        sorting = cut(topic, facts, taken=taken)
        if sorting is not None:
            known = known_for(db, facts, [number], [number])
            self._reorganise(run, sorting, known, {number: topic.revision}, "a large topic is cut")

    def _join(self, run: _Run) -> None:
        db = self.ledger.connection()
        ids = [
            row[0]
            for row in db.execute(
                "SELECT topic FROM document WHERE bytes BETWEEN 1 AND ? AND held = 0 ORDER BY topic DESC LIMIT ?",
                (SMALL_BYTES - 1, 4 * SMALL_TOPICS),
            )
        ]
        small = [(topic, facts_of(db, topic.id)) for topic in topics_of(db, sorted(ids)) if topic.into is None]
        plan = join(small)
        if plan.ops:
            facts = [fact for _, some in small for fact in some if fact.topic is not None]
            known = known_for(db, facts, [topic.id for topic, _ in small])
            seen = {topic.id: topic.revision for topic, _ in small}
            self._reorganise(run, Sorting(plan), known, seen, "small topics that share terms are joined")

    def _reorganise(self, run: _Run, sorting: Sorting, known: Known, seen: dict[int, int], note: str) -> None:
        if verify(sorting.plan, known):
            raise Bug(f"a plan to tidy up is wrong: {verify(sorting.plan, known)[0].text}")
        try:
            self._apply(run, sorting, known, seen, kind="consolidate", by="rules", outcome="ok", note=note)
        except Superseded:
            return  # a topic has changed meanwhile: it is looked at again when it is touched again
        renew(self.ledger, run.holder, LEASE_S)

    def _small(self, db: sqlite3.Connection) -> int:
        found = db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM document WHERE bytes BETWEEN 1 AND ? LIMIT ?)",
            (SMALL_BYTES - 1, 4 * SMALL_TOPICS),
        ).fetchone()
        return int(found[0])

    def _candidates(self, db: sqlite3.Connection, named: set[int]) -> list[Topic]:
        """The topics that a model is shown: those that the rules would take, then the latest."""
        latest = [
            row[0] for row in db.execute("SELECT id FROM topic WHERE into_topic IS NULL ORDER BY id DESC LIMIT 40")
        ]
        ids = list(dict.fromkeys((*sorted(named), *latest)))[:MAX_TOPICS]
        by_id = {topic.id: topic for topic in topics_of(db, ids)}
        return [by_id[each] for each in ids if each in by_id]


def _revisions(db: sqlite3.Connection, topics: Iterable[int]) -> dict[int, int]:
    return {topic.id: topic.revision for topic in topics_of(db, sorted(topics))}


def _topics_in(op: Op) -> set[int]:
    found = getattr(op, "topic", None)
    return {found} if found is not None else set()


def _concerned(plan: Plan) -> set[int]:
    """The topics that a plan rearranges or renames, of which it must have seen the latest."""
    concerned: set[int] = set()
    for op in plan.ops:
        if isinstance(op, Merge):
            concerned |= {op.into, *op.topics}
        elif isinstance(op, Split | Retitle | Summarise | Alias):
            concerned.add(op.topic)
    return concerned


def _keys_of(plan: Plan, batch: Sequence[Fact], before: Sequence[Fact]) -> dict[str, int | str]:
    """The keys by which later facts find where a model has put these: the place of most facts of a subject."""
    about = subjects(batch, before)
    votes: dict[str, dict[int | str, int]] = {}
    for op in plan.ops:
        if isinstance(op, Assign):
            where: int | str = op.topic if op.topic is not None else op.title
            for fact in op.facts:
                if about.get(fact):
                    tally = votes.setdefault(folded(about[fact]), {})
                    tally[where] = tally.get(where, 0) + 1
    return {key: max(tally, key=lambda each: tally[each]) for key, tally in votes.items()}
