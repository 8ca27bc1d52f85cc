"""Draw the controller's table, so that the picture in the docs is the code."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.supervisor.machine import Row

__all__ = ["mermaid"]


def mermaid(rows: Iterable[Row]) -> str:
    """Return the table as a Mermaid state diagram: one arrow for each pair of states, with what leads along it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.state is not row.then:
            arrows.setdefault((row.state.value, row.then.value), []).append(row.when)
    lines = ["stateDiagram-v2", "    [*] --> start"]
    for (state, then), whens in arrows.items():
        lines.append(f"    {_id(state)} --> {_id(then)}: {' / '.join(dict.fromkeys(whens))}")
    ends = dict.fromkeys(row.then.value for row in rows if row.then.final)
    return "\n".join([*lines, *(f"    {_id(end)} --> [*]" for end in ends)])


def _id(state: str) -> str:
    return state.replace("-", "_")
