"""Why the save of a step failed on this node, and which rank it is to blame. Pure: `generations` knows when to ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from perdure.errors import DeadlineExceeded, PerdureError, RankFailed, ReplicaMismatch, StateMismatch

__all__ = ["another_save", "disagreement", "late", "left_early"]


def left_early(step: int, rank: int) -> RankFailed:
    """A rank is gone, and with it its part."""
    return RankFailed(
        f"step {step} was not saved: rank {rank} left before it had staged its part", rank=rank, step=step
    )


def another_save(step: int, other: int, *, seq: int, rank: int) -> StateMismatch:
    """``rank`` saves ``other`` as its save number ``seq``, which is ``step`` on the others, or saves other tensors."""
    return StateMismatch(
        f"save {seq} is step {step} on other ranks but step {other} on rank {rank}, or its ranks save different sets "
        "of tensors; call save with the same step and the same state on every rank",
        rank=rank,
    )


def late(step: int, *, unstaged: Mapping[int, int], waiting: Set[int], within_s: float) -> DeadlineExceeded:
    """Not all ranks staged in time. ``unstaged`` maps local to global ranks; those of ``waiting`` wait for a segment.

    >>> str(late(6, unstaged={0: 0, 1: 1}, waiting={0}, within_s=2.0))
    'step 6 was not saved: rank 1 had not staged its part within 2 s'
    """
    to_blame = sorted(rank for local, rank in unstaged.items() if local not in waiting)
    if to_blame:
        names = ", ".join(f"rank {rank}" for rank in to_blame)
        why = f"{names} had not staged {'its part' if len(to_blame) == 1 else 'their parts'}"
    else:
        why = "no memory became free, because earlier steps are still being written"
    return DeadlineExceeded(
        f"step {step} was not saved: {why} within {within_s:g} s",
        what=f"all ranks to stage step {step}",
        missing=", ".join(f"rank {rank}" for rank in sorted(unstaged.values())),
        step=step,
    )


def disagreement(step: int, said: Iterable[tuple[int, Mapping[str, str]]]) -> PerdureError | None:
    """Compare the digests that ranks, as ``(rank, said)``, give of the values and pieces that they hold in common."""
    seen: dict[str, tuple[int, str]] = {}
    for other, digests in said:
        for name, digest in digests.items():
            rank, known = seen.setdefault(name, (other, digest))
            if known != digest:
                return ReplicaMismatch(
                    f"step {step} was not saved: {name} is not the same on ranks {rank} and {other}; "
                    "give what differs by intent as perdure.RankLocal(...)",
                    tensor=name,
                    ranks=[rank, other],
                )
    return None
