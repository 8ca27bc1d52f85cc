"""The state of every random generator of a rank: Python's, NumPy's, torch's on the CPU and on each CUDA device."""

from __future__ import annotations

import hashlib
import random
from array import array
from typing import Any

import numpy as np
import torch

__all__ = ["Rng"]


class Rng:
    """A stateful view of this process's global generators, to be saved as ``perdure.RankLocal(perdure.Rng(rank))``.

    In a world of another size a rank that was not among the saved ones does not repeat another rank's numbers: it
    seeds itself from that rank's state and its own rank, always alike.
    """

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def state_dict(self) -> dict[str, Any]:
        """All states as bytes and plain numbers."""
        version, words, gauss = random.getstate()
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        state: dict[str, Any] = {
            "rank": self.rank,
            "python": (version, array("I", words).tobytes(), gauss),
            "numpy": (str(name), np.asarray(keys, np.uint32).tobytes(), int(position), int(has_gauss), float(cached)),
            "torch": torch.get_rng_state().numpy().tobytes(),
        }
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            state["cuda"] = [each.cpu().numpy().tobytes() for each in torch.cuda.get_rng_state_all()]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set all generators; see the class for a rank that was not saved."""
        if state["rank"] != self.rank:
            seed = int.from_bytes(
                hashlib.sha256(state["torch"] + self.rank.to_bytes(8, "little")).digest()[:8], "little"
            )
            random.seed(seed)
            np.random.seed(seed % (1 << 32))
            torch.manual_seed(seed)
            return
        version, words, gauss = state["python"]
        random.setstate((version, tuple(array("I", words)), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, cached))
        torch.set_rng_state(_bytes(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(_bytes(each), device)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
