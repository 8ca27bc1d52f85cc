"""`gated_agent.py` whose store can also be full or broken, and which can lack memory for others' copies.

argv is job, url, lease, rules. ``do`` may also be "full" and "eio", which fail the call, and "eio after", which fails
it once it has been done; ``"of": text`` of each of these rules says how the URL of its store ends. Rules without a
verb: ``no room`` refuses every copy for another node, ``no memory`` leaves room for no segment while the file
``no memory`` lies beside the run, ``clock`` lets the wall clock jump (`jumping`).
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from dataclasses import dataclass

import jumping

from perdure.checkpoint import agent_memory, nodes
from perdure.cli.agent import serve
from perdure.clock import SystemClock
from perdure.errors import StorageError, StorageFull
from perdure.store import StoreUrl, open_store
from perdure.store.faults import Delay, Fail, Faults, Rule


@dataclass(frozen=True)
class Gate(SystemClock):
    """Lets time pass until the test says so."""

    folder: pathlib.Path

    def sleep(self, seconds: float) -> None:
        (self.folder / "held").touch()
        give_up = time.monotonic() + seconds
        while not (self.folder / "go").exists() and time.monotonic() < give_up:
            time.sleep(0.005)


class NoRoom(nodes.Wards):
    """Keeps nothing."""

    def __init__(self, make: object) -> None:
        def refuse(nbytes: int) -> object:
            raise StorageFull("no memory for a copy", file="memory")

        super().__init__(refuse)  # type: ignore[arg-type]


def main() -> int:
    job, url, lease_s, text = sys.argv[1:]
    gate = Gate(pathlib.Path(StoreUrl.parse(url).location).parent)
    eio = StorageError("[Errno 5] Input/output error")
    faults = {
        "hold": Delay(20.0, gate),
        "full": Fail(StorageFull("no space is left on the device")),
        "eio": Fail(eio),
        "eio after": Fail(eio, "after"),
    }
    given = json.loads(text)
    if any(rule["do"] == "no room" for rule in given):
        nodes.Wards = NoRoom  # type: ignore[misc]
    if any(rule["do"] == "no memory" for rule in given):
        really = agent_memory.available_nbytes
        agent_memory.available_nbytes = lambda: 0 if (gate.folder / "no memory").exists() else really()  # type: ignore[assignment]
    if any(rule["do"] == "clock" for rule in given):
        jumping.install(gate.folder)

    def opened(place: str) -> Faults:
        mine = [rule for rule in given if rule["do"] in faults and place.endswith(rule["of"])]
        rules = [Rule(r["verb"], faults[r["do"]], match=r["match"], nth=r.get("nth", 1)) for r in mine]
        return Faults(open_store(place), rules)

    return serve(job, url, lease_s=float(lease_s), open_store=opened)


sys.exit(main())
