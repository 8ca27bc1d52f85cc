"""What a commit is, in a line: its size of its own and shared with earlier ones, how many ranks saved it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from perdure.errors import FormatRefused, IntegrityError, StorageError
from perdure.state.entries import Index
from perdure.store import Commit, Run

__all__ = ["Summary", "summary_of"]


@dataclass(frozen=True, slots=True)
class Summary:
    """``own_bytes`` were written for this commit, packs and parts; ``shared_bytes`` are packs of earlier commits."""

    own_bytes: int
    shared_bytes: int
    world: int
    n_tensors: int
    problem: str | None = None
    """why a part could not be read, so that the numbers are too small"""


def summary_of(run: Run, commit: Commit) -> Summary:
    """Read the records of the parts of ``commit``, and nothing else."""
    own = shared = world = n_tensors = 0
    problem = None
    for ref in commit.parts:
        own += ref.nbytes
        try:
            part = run.read_part(ref)
            world = max(world, msgspec.json.decode(part.index, type=Index).world)
        except (IntegrityError, StorageError) as error:
            problem = str(error)
            continue
        except msgspec.MsgspecError as error:
            problem = str(FormatRefused(f"{ref.name} is refused: {error}"))
            continue
        mine = f"packs/{ref.name.removeprefix('parts/').removesuffix('.jsonl')}-"
        for pack in part.packs:
            if pack.name.startswith(mine):
                own += pack.nbytes
            else:
                shared += pack.nbytes
        # A tensor that several parts hold blocks of is in each of them.
        n_tensors = max(n_tensors, sum(leaf.count for leaf in part.leaves if leaf.kind in ("tensors", "locals")))
    return Summary(own, shared, world, n_tensors, problem)
