"""Save through DCP, look at the run, and take perdure's error out of DCP's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from perdure.adapters.torch.dcp import StorageWriter
from perdure.cli.main import main
from perdure.errors import PerdureError
from perdure.store import Run, open_store
from perdure.store.branch import standing

__all__ = ["cause", "command_line", "refused", "run_of", "save", "steps"]


def run_of(url: str | Path) -> Run:
    return Run.open(open_store(str(url)), create=False)


def steps(url: str | Path) -> list[int]:
    return [commit.step for commit in standing(run_of(url))]


def save(url: str | Path, state: dict[str, Any], step: int, **options: Any) -> None:
    dcp.save(state, checkpoint_id=f"somewhere/step-{step}", storage_writer=StorageWriter(url, **options))


def command_line(*words: str) -> int:
    """The exit code of `perdure checkpoint ...`."""
    try:
        return main(["checkpoint", *words]) or 0
    except SystemExit as end:
        return int(end.code or 0)


def cause(error: CheckpointException) -> PerdureError:
    """The error of perdure inside DCP's."""
    found = [each for each, _ in error.failures.values()]
    assert isinstance(found[0], PerdureError), error
    return found[0]


def refused(work: Callable[[], Any]) -> PerdureError:
    with pytest.raises(CheckpointException) as caught:
        work()
    return cause(caught.value)
