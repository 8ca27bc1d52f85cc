"""Every error that perdure raises, in one tree grouped by what the caller does next.

| group | what the caller does next | exit code |
|---|---|---|
| `TryAgain` | wait or reconnect, then do the same again | 75 |
| `IntegrityError` | use another copy: another tier, an older step | 65 |
| `CallError` | correct the call, the state or the configuration | 64 |
| `NeedsPerson` | make room, give permission, or decide which writer is right | 73 |
| `Bug` | report it | 70 |

The facts of an error are attributes (``error.facts``, plain JSON values). Each class has a stable ``kind``;
between processes an error travels as kind, message and facts (`to_wire`, `from_wire`), never as a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "AgentLost",
    "BlobCorrupt",
    "BlobMissing",
    "Bug",
    "CallError",
    "DeadlineExceeded",
    "FormatRefused",
    "IntegrityError",
    "LayoutError",
    "LinkLost",
    "NeedsPerson",
    "NotCovered",
    "NotSerializable",
    "PerdureError",
    "ProtocolError",
    "RankFailed",
    "ReplicaMismatch",
    "StateMismatch",
    "StorageError",
    "StorageFull",
    "Superseded",
    "TryAgain",
    "fault_in",
    "from_wire",
    "to_wire",
]

_BY_KIND: dict[str, type[PerdureError]] = {}


class PerdureError(Exception):
    """Root of the tree. ``str(error)`` is one sentence that says what to do; ``facts`` holds its attributes.

    >>> error = BlobCorrupt("tile 3 of 'w' is corrupt", tensor="w", file="a.pack")
    >>> error.kind, error.exit_code, error.tensor
    ('corrupt', 65, 'w')
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Any] = facts

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        other = _BY_KIND.setdefault(cls.kind, cls)
        assert other is cls, f"two errors of kind {cls.kind!r}"

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no fact {name!r}")

    def __str__(self) -> str:
        return self.message


class TryAgain(PerdureError):
    """Nothing is wrong with the data; the same call may go through later."""

    kind = "try-again"
    exit_code = 75


class DeadlineExceeded(TryAgain):
    """A wait ran past its deadline; facts name what was awaited (``missing``: ranks, files or nodes)."""

    kind = "deadline"


class LinkLost(TryAgain):
    """A connection closed before its work was done."""

    kind = "link-lost"


class AgentLost(LinkLost):
    """The node's agent is gone; ranks go on and save by themselves."""

    kind = "agent-lost"


class RankFailed(TryAgain):
    """A rank of the job failed; facts: ``rank``, ``code`` or ``signal``, ``attempt``."""

    kind = "rank-failed"


class IntegrityError(PerdureError):
    """The bytes are not what was saved; another copy may be."""

    kind = "integrity"
    exit_code = 65


class BlobCorrupt(IntegrityError):
    """Bytes do not hash to their recorded digest; facts: ``tensor``, ``file``, ``tile``."""

    kind = "corrupt"


class BlobMissing(IntegrityError):
    """A named object is not in the store; facts: ``file``."""

    kind = "missing"


class NotCovered(IntegrityError):
    """The pieces at hand do not cover a wanted box; facts: ``tensor``, ``box``."""

    kind = "not-covered"


class FormatRefused(IntegrityError):
    """A file is malformed, hostile, or of a format version that this release does not read."""

    kind = "format-refused"


class CallError(PerdureError, ValueError):
    """The call cannot be carried out as made."""

    kind = "call"
    exit_code = 64


class StateMismatch(CallError):
    """Saved and live state do not fit; facts: ``missing``, ``unexpected``, ``shape``, ``dtype`` (lists of keys)."""

    kind = "state-mismatch"


class LayoutError(CallError):
    """Pieces leave a gap, overlap without being declared replicas, or leave their tensor."""

    kind = "layout"


class NotSerializable(CallError):
    """A value has no place in a manifest; facts: ``key``, ``type``."""

    kind = "not-serializable"


class ReplicaMismatch(CallError):
    """Ranks hold different bytes under one replicated name; facts: ``tensor``, ``ranks``."""

    kind = "replica-mismatch"


class NeedsPerson(PerdureError):
    """Somebody has to act before this can work."""

    kind = "needs-person"
    exit_code = 73


class StorageError(NeedsPerson):
    """The store refused: permission, input/output error, read-only; facts: ``file``, ``errno``."""

    kind = "storage"


class StorageFull(StorageError):
    """No space or quota left; facts: ``file``."""

    kind = "storage-full"


class Superseded(NeedsPerson):
    """A newer epoch owns this run; this writer must stop; facts: ``epoch``, ``newer``."""

    kind = "superseded"


class Bug(PerdureError):
    """perdure broke a promise of its own."""

    kind = "bug"
    exit_code = 70


class ProtocolError(Bug):
    """A peer sent what the protocol does not allow."""

    kind = "protocol"


def fault_in(error: BaseException) -> str:
    """What ``error`` says is wrong, without what to do about it: for an error around it that says that itself.

    >>> fault_in(BlobCorrupt("tile 3 is damaged; use another copy or an older step"))
    'tile 3 is damaged'
    """
    return str(error).partition("; use another copy")[0]


def to_wire(error: BaseException) -> dict[str, Any]:
    """Return ``error`` as plain JSON values; an exception from outside the tree becomes a `Bug`."""
    if isinstance(error, PerdureError):
        return {"kind": error.kind, "message": error.message, "facts": error.facts}
    return {"kind": Bug.kind, "message": f"{type(error).__name__}: {error}", "facts": {}}


def from_wire(data: Mapping[str, Any]) -> PerdureError:
    """Rebuild an error from `to_wire`; an unknown kind (a newer peer) becomes a plain `PerdureError`."""
    cls = _BY_KIND.get(str(data.get("kind")), PerdureError)
    facts = data.get("facts")
    return cls(str(data.get("message")), **(dict(facts) if isinstance(facts, Mapping) else {}))
