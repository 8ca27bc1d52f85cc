"""`Memory`: the front of one space, put together from its parts."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from perdure.errors import CallError, PerdureError
from perdure.memory.consolidate import Consolidator, When
from perdure.memory.document_edits import Edits
from perdure.memory.documents import Documents
from perdure.memory.editing import carry_in
from perdure.memory.keeping import Consolidation, Keeper
from perdure.memory.ledger import Ledger
from perdure.memory.lexical import LexicalIndex
from perdure.memory.moments import moment_of
from perdure.memory.plan import folded
from perdure.memory.powers import ChatModel
from perdure.memory.records import Answer, Change, Evidence, Fact, Hit, Observed, Role, State, Topic, number_of
from perdure.memory.spaces import folder_of
from perdure.memory.topic_store import live, routes, topics_of
from perdure.memory.undo import change_of, changes, undo

__all__ = ["Memory"]


class Memory:
    """What an agent was told, in one space of the folder ``root``.

    Any thread may call it, and any number of processes may have the same space open. Only the user who made a space
    can read it (mode 0700).

    ``model`` helps to consolidate; without one rules do. With ``auto``, a thread looks every so many seconds whether
    documents were edited and whether it is time to consolidate (see `When`), until `close`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        space: str = "default",
        model: ChatModel | None = None,
        auto: float | None = None,
        when: When | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder_of(Path(root), space)
        self.space = space
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._wall = wall
        self._ledger = Ledger(self.folder / "ledger.db", wall=wall)
        self._index = LexicalIndex(self.folder / "index.db", self._ledger)
        self._model = model
        self._when = when or When()
        self._closed = threading.Event()
        self._documents = Documents(self._ledger, self.folder)
        self._consolidator = Consolidator(self._ledger, self._documents, self.folder, stopped=self._closed.is_set)
        self._error = ""
        if (self.folder / "topics").is_dir():
            try:
                self._documents.catch_up(wait_s=1.0)
            except (PerdureError, OSError) as error:  # documents can wait; what was told is in the ledger
                self._error = f"documents were not caught up: {error}"
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
        self._ledger.close()

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
        if not isinstance(text, str):
            raise CallError(f"what was told must be a string, not {type(text).__name__}")
        observed = moment_of(at, now_s=self._wall())
        return self._ledger.append(
            text,
            source=source,
            speaker=speaker,
            role=Role(role),
            observed=observed,
            key=key,
            dated=at is not None,
            meta=meta,
        )

    def search(self, question: str, *, limit: int = 10, history: bool = False) -> list[Hit]:
        """Return the facts that fit a question best, the best first: those that hold now, or with ``history`` all."""
        passages = self._index.search(question, limit=limit * 3)
        hits: list[Hit] = []
        for passage, score in passages:
            for fact in self._of_passage(passage):
                shown = fact.state is State.CURRENT or (history and fact.state is not State.FORGOTTEN)
                hits += [Hit(fact, score, "words")] if shown else []
        return hits[:limit]

    def ask(self, question: str) -> Answer:
        """Return the current facts that fit a question, ranked, as an answer."""
        hits = tuple(self.search(question))
        return Answer(
            "\n".join(hit.fact.text for hit in hits), hits, "rules", "no model: these are facts, not words about them"
        )

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
        number = carry_in(self._ledger, edits, topic=old.topic, source="edit", key=f"edit:{os.urandom(12).hex()}")
        assert number is not None
        self._documents.catch_up()
        return self.change(number)

    def undo(self, change: str | int) -> Change:
        """Take a change back, also one that took another back; return the change that does.

        Raises `CallError` where there is none, or it has been taken back already.
        """
        with self._ledger.change() as db:
            number = undo(db, number_of(change, "c"), by="human", wall=self._wall)
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

    def _of_passage(self, passage: int) -> list[Fact]:
        ids = [
            row[0]
            for row in self._ledger.connection().execute(
                "SELECT id FROM fact WHERE id >= ? AND id < ? + 1000 AND passage = ?", (passage, passage, passage)
            )
        ]
        return list(self._ledger.facts(ids).values())
