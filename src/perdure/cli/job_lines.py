"""A job as lines of text: for `show`, and for a live view that is no terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.moments import clock, when
from perdure.events.facts import seconds
from perdure.supervisor.goodput import USES, Account
from perdure.supervisor.plain import live_account, since

if TYPE_CHECKING:
    from perdure.supervisor.asking import Seen
    from perdure.supervisor.messages import NodeView

__all__ = ["account_line", "head_line", "lines_of", "node_line", "restarts_line"]

_LAST_FACTS = 10


def lines_of(seen: Seen) -> list[str]:
    """The job for people."""
    view = seen.view
    _, account = live_account(view)
    lines = [head_line(seen), *([f"({seen.note})"] if seen.note else []), f"command: {' '.join(view.spec.command)}"]
    if view.job.reason:
        lines.append(f"last failure: {view.job.reason}")
    lines.append(account_line(account))
    if any(account.restarts.values()):
        lines.append(restarts_line(account))
    lines += ["", *(line for node in view.nodes for line in node_line(node))]
    lines += [f"until {when(out.until_s)} {out}" for out in view.job.cordon.nodes if out.until_s > view.now_at]
    if view.facts:
        lines += ["", *(f"{clock(told.at)}  {told.sentence}" for told in view.facts[-_LAST_FACTS:])]
    return lines


def head_line(seen: Seen) -> str:
    """Name, state, attempt, step."""
    job = seen.view.job
    attempt = "no attempt yet" if job.attempt < 0 else f"attempt {job.attempt}"
    return f"job {job.name}: {job.state.value} since {when(since(seen.view))}, {attempt}, step {job.best_step}"


def account_line(account: Account) -> str:
    """Goodput, and what the rest of the time went into."""
    good = "unknown (its ranks tell no steps)" if account.goodput is None else f"{account.goodput:.1%}"
    lost = ", ".join(f"{use} {seconds(account.seconds[use])}" for use in USES if account.seconds[use] >= 0.001)
    return f"goodput {good} of {seconds(account.wall_s)}" + (f" ({lost})" if lost else "")


def restarts_line(account: Account) -> str:
    """How many restarts there were, and why."""
    causes = ", ".join(f"{n} {cause}" for cause, n in account.restarts.items() if n)
    return f"restarts: {sum(account.restarts.values())} ({causes})"


def node_line(node: NodeView) -> list[str]:
    """A node, and a line for each of its ranks."""
    place = "" if node.place is None else f", place {node.place}"
    standby = f", standby {node.standby}" if node.standby not in ("", "off") else ""
    lines = [f"node {node.facts.name} ({node.facts.host}): {node.standing}{place}{standby}"]
    for rank in node.ranks:
        what = rank.ended or (f"{rank.phase} for {seconds(max(rank.phase_s, 0.0))}" if rank.phase else "running")
        lines.append(f"  rank {node.base + rank.local_rank}: step {rank.step}, {what} (pid {rank.pid})")
    return lines
