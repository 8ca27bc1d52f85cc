"""`Memory`: the front of one space, put together from its parts."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from perdure.errors import CallError
from perdure.memory.answers import answer_by_rules
from perdure.memory.asking import read_and_answer
from perdure.memory.ledger import Ledger
from perdure.memory.lexical import LexicalIndex
from perdure.memory.moments import moment_of
from perdure.memory.powers import ChatModel
from perdure.memory.records import Answer, Evidence, Fact, Hit, Observed, Role, State, number_of
from perdure.memory.shelf import LedgerShelf
from perdure.memory.spaces import folder_of
from perdure.memory.tools import Tools

__all__ = ["Memory"]


class Memory:
    """What an agent was told, in one space of the folder ``root``.

    Any thread may call it, and any number of processes may have the same space open. Only the user who made a space
    can read it (mode 0700). ``model`` is who reads for `ask`; without one rules do.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        space: str = "default",
        model: ChatModel | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder_of(Path(root), space)
        self.space = space
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._wall = wall
        self._model = model
        self._ledger = Ledger(self.folder / "ledger.db", wall=wall)
        self._index = LexicalIndex(self.folder / "index.db", self._ledger)

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. What was acknowledged was durable before."""
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

    def ask(self, question: str, *, limit: int = 10, model: ChatModel | None = None) -> Answer:
        """Return an answer with the facts that it stands on.

        Without a model it is the facts that hold, ranked, or that there are none that fit; with one (of this call or
        of this memory) the words of the model, which must cite what it was shown. Where the model fails, the answer is
        the one without it, and its note says why.
        """
        reader = model or self._model
        if reader is not None:
            return read_and_answer(question, self.tools(), reader, hits=limit)
        return answer_by_rules(self.tools().shelf, question, self.search(question, limit=limit))

    def tools(self) -> Tools:
        """Return the tools by which a model or another agent reads this memory; none of them can write."""
        return Tools(LedgerShelf(self._ledger, self.search))

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
