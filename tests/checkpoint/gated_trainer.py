"""`trainer.py` with gates at which a rank waits for the test, and its agent's address behind the test's relay.

In the environment: ``RELAY`` the port of a `relay.Relay`; ``GATE`` one of ``forward@7``, ``copy@6``, ``restore@0``, and
``GATE_RANK`` who waits there: the file ``held`` appears beside the run, and the rank goes on when ``go`` does (20 s at
most). ``CLOCK_RANK`` is whose wall clock jumps (`jumping`). Each word that a save lies on a partner too is printed as
``Q SEQ``.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys
import threading
import time
from typing import Any

import jumping
import trainer

from perdure.checkpoint import checkpointer, copying, together
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import Reached

FOLDER = pathlib.Path(sys.argv[sys.argv.index("--to") + 1]).parent
WHERE, _, AT = os.environ.get("GATE", "").partition("@")
MINE = os.environ.get("GATE_RANK") == os.environ.get("RANK", "0")
passed = threading.Event()


def gate(where: str, step: int) -> None:
    if not MINE or where != WHERE or step != int(AT) or passed.is_set():
        return
    passed.set()
    (FOLDER / "held").touch()
    give_up = time.monotonic() + 20
    while not (FOLDER / "go").exists() and time.monotonic() < give_up:
        time.sleep(0.005)


def relay(join: Any) -> Any:
    def through(self: AgentLink, *args: Any) -> int:
        port = join(self, *args)
        with socket.create_connection(("127.0.0.1", int(os.environ["RELAY"]))) as asking:
            asking.sendall(str(port).encode())
            return int(asking.recv(16))

    return through


def tell_copies(hear: Any) -> Any:
    def heard(self: Any, message: Any) -> None:
        if isinstance(message, Reached) and message.error is None and message.tier == "peer":
            trainer.say(f"Q {message.seq}")
        hear(self, message)

    return heard


def gate_load(load: Any) -> Any:
    def gated(*args: Any, **named: Any) -> Any:
        gate("restore", 0)
        return load(*args, **named)

    return gated


def gate_arm(arm: Any) -> Any:
    def armed(self: Any, run: Any, model: Any, optimizer: Any) -> None:
        arm(self, run, model, optimizer)
        model.register_forward_hook(lambda *_: gate("forward", run.step))
        whole = copying.copy_many

        def half(src: Any, dst: Any, nbytes: Any, **options: Any) -> None:
            if threading.current_thread().name == "perdure-copy":
                some = len(src) // 2
                whole(src[:some], dst[:some], nbytes[:some], **options)
                gate("copy", run.step)
                whole(src[some:], dst[some:], nbytes[some:], **options)
            else:
                whole(src, dst, nbytes, **options)

        copying.copy_many = half  # type: ignore[assignment]

    return armed


if os.environ.get("CLOCK_RANK") == os.environ.get("RANK", "0"):
    jumping.install(FOLDER)
if "RELAY" in os.environ:
    AgentLink.join = relay(AgentLink.join)  # type: ignore[method-assign]
checkpointer.Checkpointer._hear = tell_copies(checkpointer.Checkpointer._hear)  # type: ignore[method-assign]
together.carry_out = gate_load(together.carry_out)
trainer.Fault.arm = gate_arm(trainer.Fault.arm)  # type: ignore[method-assign]
trainer.main()
