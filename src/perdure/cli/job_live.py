"""A job on the terminal, shown again and again until it is over; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from perdure.cli.job_lines import account_line, head_line, restarts_line
from perdure.cli.moments import clock
from perdure.errors import NeedsPerson
from perdure.events.facts import seconds
from perdure.supervisor.plain import live_account

if TYPE_CHECKING:
    from rich.console import Group

    from perdure.supervisor.asking import Asker, Seen

__all__ = ["live", "picture"]

_LAST_FACTS = 8
_COLOURS = {"runs": "green", "spare": "cyan", "draining": "yellow", "drained": "yellow", "lost": "red"}
_LINE_EVERY_S = 5.0
_MOST_RANKS = 64


def live(asker: Asker, *, every_s: float) -> int:
    """Show the job every ``every_s`` seconds; return its exit code when it is over.

    Raises `NeedsPerson` if its controller is gone for good.
    """
    from perdure.cli.following import Following

    following = Following()
    if sys.stdout.isatty():
        from rich.live import Live

        with Live(picture(asker.look()), refresh_per_second=1 / every_s, screen=False) as screen:
            while (seen := asker.look()) is not None:
                screen.update(picture(seen))
                if following.over(seen):
                    break
                time.sleep(every_s)
        return _end(seen)
    told, next_line_s, lost = 0, 0.0, False
    while True:
        seen = asker.look()
        for fact in seen.view.facts:
            if fact.number > told:
                told = fact.number
                print(f"{clock(fact.at)}  {fact.sentence}", flush=True)
        over = following.over(seen)
        if time.monotonic() >= next_line_s or over or lost != (not seen.live):
            next_line_s, lost = time.monotonic() + _LINE_EVERY_S, not seen.live
            print(head_line(seen) + (f" ({seen.note})" if lost and not over else ""), flush=True)
        if over:
            return _end(seen)
        time.sleep(every_s)


def _end(seen: Seen) -> int:
    if not seen.view.job.state.final:
        raise NeedsPerson(f"job {seen.view.job.name} is not over, but {seen.note}")
    return seen.view.job.exit_code or 0


def picture(seen: Seen) -> Group:
    """The job as rich draws it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    view = seen.view
    _, account = live_account(view)
    lines = [Text(head_line(seen), style="bold"), Text(account_line(account))]
    if seen.note:
        lines.insert(1, Text(f"({seen.note})", style="yellow"))
    if any(account.restarts.values()):
        lines.append(Text(restarts_line(account)))
    table = Table(expand=True)
    for name in ("node", "standing", "rank", "step", "phase", "for"):
        table.add_column(name, justify="right" if name in ("rank", "step", "for") else "left")
    n = 0
    for node in view.nodes:
        standing = Text(node.standing, style=_COLOURS.get(node.standing, "red"))
        table.add_row(node.facts.name, standing, *([""] * 4 if not node.ranks else []))
        for rank in node.ranks[: max(0, _MOST_RANKS - n)]:
            n += 1
            what = Text(rank.ended, style="red") if rank.ended else Text(rank.phase or "running")
            table.add_row(
                "",
                "",
                str(node.base + rank.local_rank),
                str(rank.step),
                what,
                seconds(max(rank.phase_s, 0.0)) if rank.phase and not rank.ended else "",
            )
    ranks = sum(len(node.ranks) for node in view.nodes)
    more = [Text(f"... and {ranks - n} ranks more: perdure console shows all")] if ranks > n else []
    facts = [Text(f"{clock(told.at)}  {told.sentence}") for told in view.facts[-_LAST_FACTS:]]
    return Group(*lines, table, *more, *facts)
