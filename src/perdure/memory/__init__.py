"""Long-term memory for agents that keeps every word it was told, and knows what of it still holds.

Truth is an append-only ledger of evidence and facts in SQLite, one file a space; topic documents in Markdown are the
view that people read and edit; indexes are disposable. It works without any model, and better with one.

>>> import tempfile
>>> from perdure.memory import Memory
>>> with Memory(tempfile.mkdtemp()) as memory:
...     _ = memory.observe("Anna lives in Lisbon.", source="chat")
...     [hit.fact.text for hit in memory.search("Where does Anna live?")]
['Anna lives in Lisbon.']
"""

from perdure.memory.consolidate import When
from perdure.memory.keeping import Consolidation
from perdure.memory.memory import Memory
from perdure.memory.powers import ChatModel, Embedder, Reranker
from perdure.memory.records import (
    Answer,
    Bond,
    Change,
    Evidence,
    Fact,
    Hit,
    Link,
    Observed,
    Role,
    State,
    Topic,
)
from perdure.memory.tools import Result, Tools

__all__ = [
    "Answer",
    "Bond",
    "Change",
    "ChatModel",
    "Consolidation",
    "Embedder",
    "Evidence",
    "Fact",
    "Hit",
    "Link",
    "Memory",
    "Observed",
    "Reranker",
    "Result",
    "Role",
    "State",
    "Tools",
    "Topic",
    "When",
]
