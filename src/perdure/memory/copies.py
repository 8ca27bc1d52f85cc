"""What becomes of the backups and exports of a space when something of it is purged: they are rewritten, or deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perdure.errors import CallError, PerdureError
from perdure.memory.exporting import export
from perdure.memory.ledger import Ledger
from perdure.memory.schema import check
from perdure.memory.sqlite_files import File, connect, explained_sqlite
from perdure.memory.whole_files import sweep, sync_file
from perdure.store import open_store

__all__ = ["scrub_copies", "sweep_copies"]


def scrub_copies(ledger: Ledger, empty: Callable[[File], object]) -> dict[str, tuple[str, bool]]:
    """Take what was purged out of every copy that was noted; ``empty`` does it in the tables of one.

    Returns for each what was done, and whether that is enough.
    """
    done: dict[str, tuple[str, bool]] = {}
    for place, kind in ledger.connection().execute("SELECT place, kind FROM copy ORDER BY place").fetchall():
        try:
            with explained_sqlite(Path(place), "rewrite"):
                done[place] = _scrub(ledger, place, kind, empty), True
        except PerdureError as error:
            done[place] = f"could not be rewritten, so see to it: {error}", False
    return done


def sweep_copies(ledger: Ledger, *, outside: bool, wait_s: float = 0.0) -> list[Path]:
    """Sweep what killed processes left of copies, in the space and with ``outside`` wherever copies were noted.

    Returns the copies that are still being made after ``wait_s`` seconds.
    """
    folder = ledger.path.parent
    places = ledger.connection().execute("SELECT place FROM copy WHERE kind <> 'stored'").fetchall()
    parents = {Path(place).parent for (place,) in places}
    inside = {folder, folder / "backups", folder / "receipts"}
    return sweep(
        sorted(inside | {each for each in parents if outside or each.is_relative_to(folder.absolute())}), wait_s=wait_s
    )


def _scrub(ledger: Ledger, place: str, kind: str, empty: Callable[[File], object]) -> str:
    if kind == "stored":
        url, _, name = place.rpartition("#")
        open_store(url).delete(name)
        done = "deleted from its store"
    elif not Path(place).is_file():
        done = "is no longer there; if it was moved, delete it where it is now"
    elif kind == "export":
        export(ledger, place, replace=True)
        return "written again, as the ledger is now"
    else:
        _rewrite(Path(place), ledger.id, empty)
        return "rewritten"
    with ledger.change() as db:
        db.execute("DELETE FROM copy WHERE place = ?", (place,))
    return done


def _rewrite(path: Path, owner: str, empty: Callable[[File], object]) -> None:
    db = connect(path, busy_s=5.0)
    try:
        check(db)
        if db.execute("SELECT value FROM space WHERE key = 'id'").fetchone()[0] != owner:
            raise CallError(f"{path} is of another space; what it holds was left as it is")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("BEGIN IMMEDIATE")
        empty(db)
        db.execute("COMMIT")
        db.execute("VACUUM")
    finally:
        db.close()
    sync_file(path)
