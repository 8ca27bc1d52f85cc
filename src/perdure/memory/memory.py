"""`Memory`: the front of one space, put together from its parts."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import msgspec

from perdure.errors import CallError, PerdureError, StorageError, TryAgain
from perdure.memory.answers import answer_by_rules
from perdure.memory.asking import read_and_answer
from perdure.memory.authority import by_authority
from perdure.memory.backup import backup
from perdure.memory.bonds import with_bonds
from perdure.memory.consolidate import Consolidator, When
from perdure.memory.copies import sweep_copies
from perdure.memory.doctor import Finding, examine, examine_index
from perdure.memory.document_edits import Edits
from perdure.memory.documents import Documents
from perdure.memory.editing import BY_ID, carry_in
from perdure.memory.exporting import export
from perdure.memory.forget import Derived, Receipt, Target, forget, resume_purges, selected
from perdure.memory.fusion import Calibration, Fusion
from perdure.memory.holding import around, by_holding, is_later
from perdure.memory.hops import best_chain, hits_of
from perdure.memory.importing import Imported, import_
from perdure.memory.index_file import GARBLED
from perdure.memory.keeping import Consolidation, Keeper
from perdure.memory.ledger import Ledger
from perdure.memory.lexical import Filter, LexicalIndex
from perdure.memory.mentions import IndexFinder
from perdure.memory.moments import moment_of
from perdure.memory.plan import folded
from perdure.memory.powers import ChatModel, Embedder, Reranker
from perdure.memory.quoting import quoted
from perdure.memory.records import Answer, Change, Evidence, Fact, Hit, Observed, Role, Topic, number_of
from perdure.memory.searching import Searcher
from perdure.memory.settle import current_of, settle
from perdure.memory.shelf import LedgerShelf
from perdure.memory.slot_ranking import by_slot, is_sure
from perdure.memory.slots import keys_named
from perdure.memory.spaces import folder_of, make_folder
from perdure.memory.told import Told
from perdure.memory.tools import Tools
from perdure.memory.topic_store import live, routes, topics_of
from perdure.memory.undo import change_of, changes, journal_of, undo
from perdure.memory.vectors import Vectors
from perdure.memory.views import History, Status, history, status

__all__ = ["Memory"]

_PURGE_S: Final = 5.0
_PATIENCE_S: Final = 5.0
"""How long reading settles what was told before it looks."""
_ROLES: Final = frozenset(each.value for each in Role)


class Memory:
    """What an agent was told, in one space of the folder ``root``.

    Any thread may call it, and any number of processes may have the same space open. Only the user who made a space
    can read it (mode 0700).

    ``model`` reads for `ask` and helps to consolidate; without one rules do. ``embedder`` lets passages be found by
    sense too, as far as that helps on what was told (see `embed`); ``reranker`` orders what was found. With ``auto``, a
    thread looks every so many seconds whether documents were edited and whether it is time to consolidate (see
    `When`), until `close`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        space: str = "default",
        model: ChatModel | None = None,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
        auto: float | None = None,
        when: When | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder_of(Path(root), space)
        self.space = space
        make_folder(self.folder)
        self._wall = wall
        self._ledger = Ledger(self.folder / "ledger.db", wall=wall)
        self._index = LexicalIndex(self.folder / "index.db", self._ledger)
        self._vectors = Vectors(self.folder / "vectors.db", self._ledger, embedder) if embedder is not None else None
        self._fusion = Fusion(self._index, self._vectors) if self._vectors is not None else None
        self._searcher = Searcher(self._ledger, self._index, sense=self._fusion, reranker=reranker)
        self._model = model
        self._when = when or When()
        self._closed = threading.Event()
        self._documents = Documents(self._ledger, self.folder)
        self._consolidator = Consolidator(
            self._ledger, self._documents, self.folder, settle=self.settle, stopped=self._closed.is_set
        )
        self._error = ""
        with contextlib.suppress(StorageError):  # what cannot be swept is found by `doctor`, and by a purge
            sweep_copies(self._ledger, outside=False)
        if (self.folder / "topics").is_dir():
            try:
                self._documents.catch_up(wait_s=1.0)
            except (
                PerdureError,
                OSError,
                msgspec.MsgspecError,
                *GARBLED,
            ) as error:  # documents can wait; what was told is in the ledger
                self._error = f"documents were not caught up: {error}"
        try:
            resume_purges(self._ledger, derived=self._derived(), deadline_s=_PURGE_S)
        except TryAgain:  # somebody reads old copies: `status` counts it as pending, and the next opening tries again
            pass
        self._keeper = (
            Keeper(self._consolidator, when=self._when, every_s=auto, model=model) if auto is not None else None
        )

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. What was acknowledged was durable before; a consolidation that is under way is dropped."""
        self._closed.set()
        if self._keeper is not None:
            self._keeper.stop(wait_s=10.0)
        self._index.close()
        if self._vectors is not None:
            self._vectors.close()
        self._ledger.close()

    @property
    def ledger(self) -> Ledger:
        """The ledger, for those parts of perdure that read it as it is."""
        return self._ledger

    def observe(
        self,
        text: str,
        *,
        source: str = "",
        at: str | float | dt.datetime | None = None,
        speaker: str = "",
        role: Role | str = Role.USER,
        key: str | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> Observed:
        """Keep what was told, word for word; it is durable when this returns, and found at once.

        ``source`` says where it comes from (a chat, a file), ``at`` when it was said (ISO 8601, seconds since 1970 or
        a datetime; now if not given), ``role`` whose word it is. The same ``key`` again, or the same words of the same
        source and speaker with the same ``at``, is the same observation.

        Raises `CallError` for arguments that are no such things, `StorageFull` where the disk is full.
        """
        told = self._told(text, source=source, at=at, speaker=speaker, role=role, key=key, meta=meta)
        return self._ledger.keep([told])[0]

    def observe_many(self, items: Sequence[Mapping[str, object]]) -> list[Observed]:
        """Keep many at once, in one transaction: all of them, or after an error none.

        Each item has ``text`` and what else `observe` takes, by name. Raises `CallError` that names the first item
        that cannot be kept.
        """
        told: list[Told] = []
        for at, item in enumerate(items):
            try:
                told.append(self._told(**item))  # type: ignore[arg-type]
            except (CallError, TypeError) as error:
                raise CallError(f"item {at}: {error}", item=at) from error
        return self._ledger.keep(told)

    def search(
        self,
        question: str,
        *,
        limit: int = 10,
        history: bool = False,
        as_of: str | float | dt.datetime | None = None,
        speaker: str | None = None,
        source: str | None = None,
        since: str | float | dt.datetime | None = None,
        until: str | float | dt.datetime | None = None,
        role: Role | str | None = None,
        topic: str | int | None = None,
    ) -> list[Hit]:
        """Return the facts that fit a question best, the best first.

        Those that hold now; with ``as_of`` those that were known and held at that time, with ``history`` all. Of two
        that conflict, the word of the higher authority (see `Role`) comes first. Only
        what ``speaker`` said, what comes from ``source``, what was said from ``since`` up to ``until``, or what stands
        in ``topic``, as far as they are given.

        Raises `CallError` for arguments that are no such things.
        """
        if not isinstance(question, str):
            raise CallError(f"a question must be a string, not {type(question).__name__}")
        only = Filter(
            speakers=None if speaker is None else frozenset([speaker]),
            sources=None if source is None else frozenset([source]),
            since_s=None if since is None else self._moment_s(since),
            until_s=None if until is None else self._moment_s(until),
            roles=None if role is None else frozenset([Role(role).authority]),
        )
        self._settled()
        hits = self._searcher.find(
            question,
            limit=max(limit, 15),
            history=history,
            as_of_s=None if as_of is None else self._moment_s(as_of),
            only=only or None,
            topic=None if topic is None else number_of(topic, "t"),
        )
        ranked = by_slot(question, hits)
        others = {number for hit in ranked for number in hit.conflicts} - {hit.fact.id for hit in ranked}
        anything = only == Filter() and topic is None and as_of is None  # what was asked for says nothing of whose
        ranked = by_authority(ranked, self._ledger.facts(others) if anything else {})
        return with_bonds(self._ledger, ranked[:limit])

    def settle(self, *, deadline_s: float = 60.0) -> int:
        """Find what the facts that were told since replace, by rules, and return how many were looked at.

        Reading does so by itself, for a short time; nothing waits where another process is writing.
        """
        return settle(self._ledger, deadline_s=deadline_s)

    def recall(self, question: str, *, budget_bytes: int = 4000, limit: int = 20) -> str:
        """Return what fits a question as quoted data for a model to read, at most ``budget_bytes`` of UTF-8."""
        return quoted(self.search(question, limit=limit), budget_bytes)

    def embed(self, *, deadline_s: float = 60.0) -> int:
        """Give what was told since vectors, and find how much sense helps here; return how many passages are left.

        Searching gives vectors to a few new passages by itself, so this is for the start and for much at once.
        Raises `CallError` without an embedder, `TryAgain` where it cannot be reached.
        """
        if self._fusion is None:
            raise CallError("this memory has no embedder; open it with Memory(..., embedder=...)")
        return self._fusion.embed(deadline_s=deadline_s)

    def calibrate(self, pairs: Sequence[tuple[str, str | int]] | None = None) -> Calibration:
        """Find anew how much sense counts beside words, from ``pairs`` of question and right fact, or by itself."""
        if self._fusion is None:
            raise CallError("this memory has no embedder; open it with Memory(..., embedder=...)")
        known = None if pairs is None else [(question, self.fact(name).passage) for question, name in pairs]
        return self._fusion.calibrate(known)

    def _moment_s(self, at: str | float | dt.datetime) -> float:
        return moment_of(at, now_s=self._wall())[1]

    def ask(self, question: str, *, limit: int = 10, model: ChatModel | None = None) -> Answer:
        """Return an answer with the facts that it stands on.

        Without a model it is the facts that hold, ranked, or that there are none that fit; with one (of this call or
        of this memory) the words of the model, which must cite what it was shown. Where the model fails, the answer is
        the one without it, and its note says why.
        """
        reader = model or self._model
        if reader is not None:
            return read_and_answer(question, self.tools(), reader, hits=limit)
        found = self.search(question, limit=limit)
        note = ""
        followed = best_chain(question, IndexFinder(self._ledger, self._index), doubts=1)
        if followed is not None:
            hits = hits_of(followed)
            found = (hits + [hit for hit in found if hit.fact.id not in {each.id for each in followed.facts}])[:limit]
            note = "" if followed.sure else "put together from several facts, by a step that the question does not name"
        elif not is_sure(found) or found[0].fact.speaker:
            near = around(self._ledger, question, self.search(question, limit=limit, history=True))
            held = by_holding(question, near)[:limit]
            if held and (not is_sure(found) or is_later(held[0].fact, found[0].fact)):
                found = with_bonds(self._ledger, held)
        return answer_by_rules(self.tools().shelf, question, found, note=note)

    def tools(self) -> Tools:
        """Return the tools by which a model or another agent reads this memory; none of them can write."""
        return Tools(LedgerShelf(self._ledger, self.search, settle=self._settled))

    def resolve(self, asked: str) -> Hit | None:
        """Return the fact that holds now in a slot, or that answers a question; None where nothing does.

        The choice is made by code: the slot that ``asked`` names, as "Ana lives in" or "port", or else that fits it.
        """
        self._settled()
        for key in keys_named(asked):
            ids = current_of(self._ledger, key)
            if ids:
                return with_bonds(self._ledger, [Hit(self._ledger.facts(ids[-1:])[ids[-1]], 1.0, "its slot")])[0]
        hits = self.ask(asked).hits
        return hits[0] if hits else None

    def consolidate(self, *, model_s: float = 120.0, wait_s: float = 60.0) -> Change | None:
        """Sort what was told into topics now; return the last change, or None where nothing was staged.

        The model, if there is one, has ``model_s`` seconds in all; whatever it does, no fact is lost. Raises
        `DeadlineExceeded` where another process is at it for longer than ``wait_s``.
        """
        return self._consolidator.run(model=self._model, model_s=model_s, wait_s=wait_s)

    def topics(self) -> list[Topic]:
        """Return the topics that hold something, in the order in which they came to be."""
        self._documents.catch_up()
        return [topic for topic in topics_of(self._ledger.connection()) if topic.file.startswith("topics/")]

    def topic(self, name: str | int) -> Topic:
        """Return a topic by its id, title or alias; an id of one that was merged means the one that it is in now.

        Raises `CallError` where there is none.
        """
        db = self._ledger.connection()
        try:
            number = live(db, number_of(name, "t"))
        except CallError:
            number = routes(db, [folded(str(name))]).get(folded(str(name)))
        if number is None:
            raise CallError(f"there is no topic {str(name)[:80]!r}; list them with topics")
        return topics_of(db, [number])[0]

    def show(self, topic: str | int) -> str:
        """Return the document of a topic, in Markdown. Raises `CallError` where there is none."""
        self._documents.catch_up()
        return self._documents.text(self.topic(topic).id)

    def edit(self, fact: str | int, text: str) -> Change:
        """Correct a fact as a person: what it said stays as history, what you say stands above what others told.

        Raises `CallError` where there is no such fact, or nothing said.
        """
        old = self.fact(fact)
        if not text.strip():
            raise CallError("say what holds instead; to have a fact forgotten, use forget")
        edits = Edits(changed=((old.id, text),))
        number = carry_in(self._ledger, edits, topic=old.topic, source=BY_ID, key=f"edit:{os.urandom(12).hex()}")
        assert number is not None
        self._documents.catch_up()
        return self.change(number)

    def undo(self, change: str | int) -> Change:
        """Take a change back, also one that took another back; return the change that does.

        Raises `CallError` where there is none, or it has been taken back already.
        """
        with self._ledger.change() as db:
            number = undo(db, number_of(change, "c"), by="human", wall=self._wall)
            facts = {fact for fact, _, _ in journal_of(db, number).states}
        back = {each.passage for each in self._ledger.facts(facts).values()}
        if back:
            self._index.drop(sorted(back))  # what had been forgotten is found again
        self._documents.catch_up()
        return self.change(number)

    def changes(self, *, limit: int = 50, before: int | None = None) -> list[Change]:
        """Return the latest changes, the newest first; ``before`` a number, older ones."""
        return changes(self._ledger.connection(), limit=limit, before=before)

    def change(self, name: str | int) -> Change:
        """Return a change by its number, as ``c3``. Raises `CallError` where there is none."""
        return change_of(self._ledger.connection(), number_of(name, "c"))

    def consolidation(self) -> Consolidation:
        """Return what is staged, how the last consolidation went, and what went wrong in the background."""
        due = self._consolidator.due(self._when)
        db = self._ledger.connection()
        row = db.execute("SELECT id FROM change WHERE kind = 'consolidate' ORDER BY id DESC LIMIT 1").fetchone()
        behind = db.execute("SELECT count(*) FROM topic WHERE revision <> written").fetchone()[0]
        return Consolidation(
            due.facts,
            due.tokens,
            change_of(db, row[0]) if row else None,
            "; ".join(each for each in (self._error, self._keeper.error if self._keeper else "") if each),
            behind,
            dict(self._documents.left_alone),
        )

    def fact(self, name: str | int) -> Fact:
        """Return a fact by its id. Raises `CallError` where there is none."""
        number = number_of(name, "f")
        self._settled()
        found = self._ledger.facts([number]).get(number)
        if found is None:
            raise CallError(f"there is no fact f{number} in space {self.space!r}")
        return found

    def evidence(self, name: str | int) -> Evidence:
        """Return a piece of evidence by its id. Raises `CallError` where there is none."""
        number = number_of(name, "e")
        found = self._ledger.evidence(number)
        if found is None:
            raise CallError(f"there is no evidence e{number} in space {self.space!r}")
        return found

    def history(self, name: str | int) -> History:
        """Return what replaces, repeats or contradicts a fact, and what it replaces, the oldest first."""
        return history(self._ledger, self.fact(name).id)

    def forget(
        self,
        *,
        fact: str | int | None = None,
        evidence: str | int | None = None,
        topic: str | int | None = None,
        source: str | None = None,
        speaker: str | None = None,
        mode: Literal["tombstone", "purge"] = "tombstone",
        reason: str = "",
        deadline_s: float = 600.0,
    ) -> Receipt:
        """Forget one thing: no search finds it any more (tombstone), or no byte of it is left (purge, for good).

        The receipt of a purge says what was looked through, and under ``left`` what a person has to see to.
        Raises `CallError` where there is no such thing, `perdure.errors.DeadlineExceeded` where a reader holds on to
        old copies; the purge is finished then when the memory is opened next.
        """
        target = Target(
            fact=None if fact is None else number_of(fact, "f"),
            evidence=None if evidence is None else number_of(evidence, "e"),
            topic=None if topic is None else number_of(topic, "t"),
            source=source,
            speaker=speaker,
        )
        return forget(self._ledger, target, mode=mode, reason=reason, derived=self._derived(), deadline_s=deadline_s)

    def would_forget(
        self,
        *,
        fact: str | int | None = None,
        evidence: str | int | None = None,
        topic: str | int | None = None,
        source: str | None = None,
        speaker: str | None = None,
    ) -> list[Fact]:
        """Return the facts that `forget` would forget."""
        target = Target(
            fact=None if fact is None else number_of(fact, "f"),
            evidence=None if evidence is None else number_of(evidence, "e"),
            topic=None if topic is None else number_of(topic, "t"),
            source=source,
            speaker=speaker,
        )
        return list(self._ledger.facts(sorted(selected(self._ledger.connection(), target)[0])).values())

    def backup(self, to: str | os.PathLike[str] | None = None) -> str:
        """Copy the space to a new file (or the URL of a store) while others write; return where it is.

        Raises `CallError` where the file exists, `perdure.errors.StorageFull`.
        """
        return backup(self._ledger, to)

    def export(self, to: str | os.PathLike[str]) -> int:
        """Write the space as JSON lines to a new file; return how many lines it has."""
        return export(self._ledger, to)

    def import_(self, file: str | os.PathLike[str]) -> Imported:
        """Take in an export, beside what is there. The same again adds nothing.

        Raises `perdure.errors.FormatRefused` for a file that is no whole export; nothing is taken in then.
        """
        return import_(self._ledger, file)

    def doctor(self, *, repair: bool = False) -> list[Finding]:
        """Examine the space; with ``repair`` also make right again what is made from the ledger."""
        checks = (lambda ledger: examine_index(ledger, self.folder / "index.db"),)
        return examine(self._ledger, checks=checks, repair=repair, derived=self._derived())

    def _drop(self, passages: Sequence[int]) -> None:
        self._index.drop(passages)
        if self._vectors is not None:
            self._vectors.drop(passages)
        else:
            (self.folder / "vectors.db").unlink(missing_ok=True)  # of a time with an embedder: made again when needed

    def _derived(self) -> Derived:
        return Derived(index=self._drop, index_again=self._index.make_again, documents=self._documents.make_again)

    def _settled(self) -> None:
        """Settle before reading, where that can be: what cannot be written now is told when something is written."""
        with contextlib.suppress(TryAgain, StorageError):
            self.settle(deadline_s=_PATIENCE_S)

    def status(self) -> Status:
        """Count what there is."""
        self._settled()
        return status(self._ledger)

    def _told(
        self,
        text: str,
        *,
        source: str = "",
        at: str | float | dt.datetime | None = None,
        speaker: str = "",
        role: Role | str = Role.USER,
        key: str | None = None,
        meta: Mapping[str, object] | None = None,
    ) -> Told:
        if not isinstance(text, str):
            raise CallError(f"what was told must be a string, not {type(text).__name__}")
        if role not in _ROLES:
            raise CallError(f"{str(role)[:40]!r} is no role; it is one of {', '.join(Role)}")
        return Told.of(
            text,
            source=source,
            speaker=speaker,
            role=Role(role),
            observed=moment_of(at, now_s=self._wall()),
            key=key,
            dated=at is not None,
            meta=meta,
        )
