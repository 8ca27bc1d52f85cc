"""What the frames of a thread say that it is doing. Knows names of torch's files, and needs no torch."""

from __future__ import annotations

import enum
from types import CodeType, FrameType

__all__ = ["Doing", "look"]

_DEPTH = 200

_COLLECTIVES = frozenset(
    {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
        "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
        "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv", "recv_object_list", "reduce",
        "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "send_object_list",
        "wait_tensor", "trigger_wait",
    }
)  # fmt: skip
_CALL = frozenset({"_call_impl", "_wrapped_call_impl"})


class Doing(enum.Enum):
    """What can be told for sure."""

    LOADING = "loading"
    SAVING = "saving"
    RESTORING = "restoring"
    EVALUATING = "evaluating"
    COLLECTIVE = "collective"


_tags: dict[CodeType, Doing | None] = {}


def look(frame: FrameType | None) -> frozenset[Doing]:
    """Return what the thread of ``frame`` (its innermost) is doing.

    It evaluates if it is in the forward of a module that is not in training mode.
    """
    found: set[Doing] = set()
    depth = 0
    while frame is not None and depth < _DEPTH:
        code = frame.f_code
        if code not in _tags:
            _tags[code] = _tag(code)
        tag = _tags[code]
        if tag is Doing.EVALUATING:
            if getattr(frame.f_locals.get("self"), "training", True) is False:
                found.add(tag)
        elif tag is not None:
            found.add(tag)
        frame = frame.f_back
        depth += 1
    return frozenset(found)


def _tag(code: CodeType) -> Doing | None:
    name, file = code.co_name, code.co_filename
    if file.endswith("torch/utils/data/dataloader.py"):
        return Doing.LOADING
    if file.endswith("torch/serialization.py"):
        return {"save": Doing.SAVING, "load": Doing.RESTORING}.get(name)
    if "torch/distributed/checkpoint/state_dict_saver.py" in file:
        return Doing.SAVING
    if "torch/distributed/checkpoint/state_dict_loader.py" in file:
        return Doing.RESTORING
    if file.endswith("torch/nn/modules/module.py") and name in _CALL:
        return Doing.EVALUATING
    if file.endswith(("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")):
        return Doing.COLLECTIVE if name in _COLLECTIVES else None
    return None
