"""What a person is shown when ranks have failed: the last words of the one that failed first, the others folded."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.events.facts import how_it_ended
from perdure.supervisor.causes import Death, first_cause

__all__ = ["last_words"]

_SHOWN_LINES = 30
_SHOWN_RANKS = 8


def last_words(deaths: Sequence[Death], *, name_nodes: bool) -> tuple[str, ...]:
    """Return the lines that tell how ``deaths`` began; none if there are none."""
    if not deaths:
        return ()
    cause = first_cause(deaths)
    others = [death for death in deaths if death is not cause]
    where = f" on {cause.node}" if name_nodes else ""
    lines = [f"rank {cause.rank}{where} failed first: it {how_it_ended(cause.code, cause.signal)}"]
    if cause.tail:
        lines[0] += "; the end of its stderr:"
        lines += [f"  | {line}" for line in cause.tail[-_SHOWN_LINES:]]
    if others:
        ends = ", ".join(f"rank {each.rank} {how_it_ended(each.code, each.signal)}" for each in others[:_SHOWN_RANKS])
        more = f" and {len(others) - _SHOWN_RANKS} more" if len(others) > _SHOWN_RANKS else ""
        lines.append(f"perdure: after it: {ends}{more}")
    return tuple(lines)
