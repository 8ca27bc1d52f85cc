"""Who makes a restored step durable that lies in memory alone: which agent writes what which ranks had saved.

Pure. Every rank calls it with the same facts. What an agent's own ranks saved it writes itself; what nobody's own agent
holds any more, because a node was lost, is written by an agent that keeps a copy for that node, the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.checkpoint.lineup import Candidate, RankView, holders_of
from perdure.checkpoint.messages import Adopt
from perdure.codec.digest import digest

__all__ = ["adoption"]

_NOBODYS = -(1 << 20)  # below the numbers that agents give


def adoption(views: Sequence[RankView], candidate: Candidate, *, node: int, follows: int | None) -> Adopt | None:
    """What to tell the agent of ``node``; None if the agents cannot make the step durable.

    ``follows`` is the slot that the step's commit is to follow.
    """
    facts = [each for view in views for each in view.generations if (each.session, each.seq) == candidate.name]
    known = facts[0]
    own = holders_of(views, *candidate.name, own=True)
    every = holders_of(views, *candidate.name)
    if len(every) != known.world or any(len(nodes) > 1 for nodes in own.values()):
        return None
    mine = [
        each
        for view in views
        for each in view.generations
        if view.node == node and (each.session, each.seq) == candidate.name and each.own
    ]
    session, seq = candidate.name
    nobodys = _NOBODYS - int(digest(f"{session} {seq}".encode())[:8], 16)
    return Adopt(
        generation=mine[0].id if mine else nobodys,
        session=session,
        seq=seq,
        step=candidate.step,
        epoch=known.epoch,
        base_slot=follows,
        kept=sorted(rank for rank, nodes in every.items() if rank not in own and nodes[0] == node),
    )
