"""Count a topic's revision up with whatever changes in what its document shows, so that no writer can forget to.

By triggers of the connection (``TEMP``), never of the file: a ledger holds nothing that runs by itself.
"""

from __future__ import annotations

import sqlite3
from typing import Final

__all__ = ["count_revisions"]

_SHOWN: Final = "OLD.state IS NOT NEW.state OR OLD.topic IS NOT NEW.topic OR OLD.since IS NOT NEW.since"
_COUNTING: Final = (
    f"""CREATE TEMP TRIGGER IF NOT EXISTS fact_shown AFTER UPDATE OF state, topic, since, until, text ON fact
    WHEN (OLD.topic IS NOT NULL OR NEW.topic IS NOT NULL)
     AND ({_SHOWN} OR OLD.until IS NOT NEW.until OR OLD.text IS NOT NEW.text)
    BEGIN UPDATE topic SET revision = revision + 1 WHERE id IN (OLD.topic, NEW.topic); END""",
    """CREATE TEMP TRIGGER IF NOT EXISTS link_shown AFTER INSERT ON link
    BEGIN UPDATE topic SET revision = revision + 1
     WHERE id IN (SELECT topic FROM fact WHERE id IN (NEW.fact, NEW.other)); END""",
    """CREATE TEMP TRIGGER IF NOT EXISTS link_undone AFTER UPDATE OF undone ON link
    BEGIN UPDATE topic SET revision = revision + 1
     WHERE id IN (SELECT topic FROM fact WHERE id IN (NEW.fact, NEW.other)); END""",
    """CREATE TEMP TRIGGER IF NOT EXISTS topic_shown AFTER UPDATE OF title, aliases, summary, into_topic ON topic
    WHEN OLD.title IS NOT NEW.title OR OLD.aliases IS NOT NEW.aliases OR OLD.summary IS NOT NEW.summary
     OR OLD.into_topic IS NOT NEW.into_topic
    BEGIN UPDATE topic SET revision = revision + 1 WHERE id = NEW.id; END""",
    """CREATE TEMP TRIGGER IF NOT EXISTS notes_shown AFTER UPDATE OF notes, extra ON document
    WHEN OLD.notes IS NOT NEW.notes OR OLD.extra IS NOT NEW.extra
    BEGIN UPDATE topic SET revision = revision + 1 WHERE id = NEW.topic; END""",
)


def count_revisions(db: sqlite3.Connection) -> None:
    """Let what this connection changes be counted; to be called once for each connection that writes."""
    db.execute("PRAGMA temp_store = MEMORY")
    for trigger in _COUNTING:
        db.execute(trigger)
