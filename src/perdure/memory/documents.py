"""Topic documents on disk: derived from the ledger, and read back where a person has edited them.

All under one file lock for each space: first what people did is taken in (`perdure.memory.document_intake`), then what
is not written is written (`perdure.memory.document_writer`), and what came in that very moment is taken in as well.
Deleting a document forgets nothing: it is written again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.clock import Deadline
from perdure.memory.document_intake import Intake
from perdure.memory.document_writer import Writer
from perdure.memory.ledger import Ledger
from perdure.memory.sqlite_files import explained_sqlite
from perdure.memory.topic_store import fill_in, topics_of
from perdure.process.lock import FileLock

__all__ = ["Documents"]

_ROUNDS: Final = 8


class Documents:
    """The documents of one space. Safe from any thread and from many processes."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.folder = folder
        self._intake = Intake(ledger, folder)
        self._writer = Writer(ledger, folder)

    @property
    def left_alone(self) -> dict[str, str]:
        """Files that were not taken in when they were last looked at, and why."""
        return self._intake.left_alone

    def catch_up(self, *, wait_s: float = 30.0) -> list[int]:
        """Take in what people did, write what is not written, and return the changes that their edits made.

        Raises `DeadlineExceeded` where another process is at it for longer than ``wait_s``, `StorageFull` or
        `StorageError` where the files cannot be written, `BlobMissing` where their folder was taken away; the ledger is
        whole then, and documents follow later.
        """
        with explained_sqlite(self.folder, "write topic documents in"):
            return self._catch_up(wait_s)

    def _catch_up(self, wait_s: float) -> list[int]:
        for each in ("topics", "archive"):
            (self.folder / each).mkdir(mode=0o700, exist_ok=True)
        changes: list[int] = []
        with FileLock.acquire(
            self.folder / "documents.lock", deadline=Deadline.after(wait_s, "the documents of this space")
        ):
            with self.ledger.change() as db:
                fill_in(db)
            self._writer.distrust()
            self._writer.recover()
            for _ in range(_ROUNDS):
                self._intake.left_alone = {}
                changes += self._intake.take_asides()
                changes += self._intake.take_files()
                if not self._writer.write(self._intake.left_alone):
                    break
            changes += self._intake.take_asides()
        return changes

    def make_again(self) -> None:
        """Write what a purge has changed, and delete the copies that were kept, which may hold what was purged."""
        self._intake.keeps_copies = False
        try:
            with explained_sqlite(self.folder, "delete copies of documents in"):
                for each in (self.folder / "kept").glob("*.md"):
                    each.unlink(missing_ok=True)
            self.catch_up()
        finally:
            self._intake.keeps_copies = True

    def text(self, topic: int) -> str:
        """Return the document of a topic as the ledger has it now."""
        db = self.ledger.connection()
        return self._writer.text(db, topics_of(db, [topic])[0])[0]
