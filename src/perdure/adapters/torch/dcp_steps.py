"""The step that a DCP ``checkpoint_id`` means: the number at the end of its last part."""

from __future__ import annotations

import os
import re

from perdure.checkpoint.asked import checked_step
from perdure.errors import CallError

__all__ = ["step_of"]

_NUMBER = re.compile(r"([0-9]{1,18})\Z")


def step_of(checkpoint_id: str | os.PathLike[str] | int) -> int:
    """The step of ``checkpoint_id``; raises `CallError` if it ends in no number.

    >>> step_of("checkpoints/run7/step-1200"), step_of("global_step_0300/"), step_of(40)
    (1200, 300, 40)
    """
    if isinstance(checkpoint_id, int):
        return checked_step(checkpoint_id)
    found = _NUMBER.search(os.fspath(checkpoint_id).rstrip("/"))
    if found is None:
        raise CallError(
            f"checkpoint_id {os.fspath(checkpoint_id)!r} ends in no number, so it names no step; give one such as "
            "'step-1200', or StorageWriter(url, step=1200)",
            checkpoint_id=os.fspath(checkpoint_id),
        )
    return checked_step(int(found[1]))
