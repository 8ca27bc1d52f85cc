"""The agent of a job with a store that a test holds at a gate, or that kills the agent: argv is job, url, lease, rules.

Rules are JSON: ``{"verb": ..., "match": glob, "nth": n, "do": "hold" | "die before" | "die after"}``, with
``"of": text`` of the stores alone whose URL ends so. At "hold" the
file ``held`` appears beside the run and the store waits until the file ``go`` does (20 s at most).
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from dataclasses import dataclass

from perdure.cli.agent import serve
from perdure.clock import SystemClock
from perdure.store import StoreUrl, open_store
from perdure.store.faults import Crash, Delay, Faults, Rule


class Deadly(Faults):
    """A store whose crashes are the process's."""

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Gate(SystemClock):
    """Lets time pass until the test says so."""

    folder: pathlib.Path

    def sleep(self, seconds: float) -> None:
        (self.folder / "held").touch()
        give_up = time.monotonic() + seconds
        while not (self.folder / "go").exists() and time.monotonic() < give_up:
            time.sleep(0.005)


def main() -> int:
    job, url, lease_s, text = sys.argv[1:]
    gate = Gate(pathlib.Path(StoreUrl.parse(url).location).parent)
    faults = {"hold": Delay(20.0, gate), "die before": Crash("before"), "die after": Crash("after")}

    def opened(place: str) -> Deadly:
        mine = [rule for rule in json.loads(text) if place.endswith(rule.get("of", ""))]
        rules = [Rule(r["verb"], faults[r["do"]], match=r["match"], nth=r.get("nth", 1)) for r in mine]
        return Deadly(open_store(place), rules)

    return serve(job, url, lease_s=float(lease_s), open_store=opened)


sys.exit(main())
