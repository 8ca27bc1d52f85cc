"""Checkpointers and runs that are closed after the test, and a process left as it was."""

from __future__ import annotations

import atexit
import io
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.framework import TorchFramework
from perdure.checkpoint.checkpointer import Checkpointer as BareCheckpointer
from perdure.checkpoint.config import Deadlines
from perdure.events import Log
from perdure.fabric import SoloFabric
from perdure.process.environ import Placement
from perdure.store import Store

_NAMES = itertools.count()
SHORT = Deadlines(agree_s=20, agent_s=10, stage_s=20, commit_s=20)


@pytest.fixture
def ram_url() -> str:
    """A store in memory of this test alone."""
    return f"ram://test-{next(_NAMES)}"


@pytest.fixture
def checkpointer() -> Iterator[Callable[..., Checkpointer]]:
    """Make a checkpointer without an agent; its sentences are in ``ckpt.said``."""
    made: list[Any] = []

    def make(place: Any, **options: Any) -> Checkpointer:
        stream = io.StringIO()
        log = Log(stream=stream)
        if isinstance(place, str) or hasattr(place, "__fspath__"):
            ckpt: Any = Checkpointer(place, **{"agent": False, "deadlines": SHORT, "log": log} | options)
        else:
            store: Store = place
            ckpt = BareCheckpointer(
                store, url="test", framework=TorchFramework(), fabric=SoloFabric(), placement=Placement(),
                start_agent=None, log=log, deadlines=SHORT,
            )  # fmt: skip
        ckpt.said = stream.getvalue
        made.append(ckpt)
        return ckpt

    yield make
    for ckpt in made:
        ckpt.close()


@pytest.fixture
def unhooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what `attach` hooks into the process."""
    hooks: list[Any] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    hook = sys.excepthook
    register = atexit.register
    monkeypatch.setattr(atexit, "register", lambda action, *args: hooks.append(action) or register(action, *args))
    yield
    for action in hooks:
        action()
        atexit.unregister(action)
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.excepthook = hook
