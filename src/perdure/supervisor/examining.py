"""Run the checks that the controller asks for, as child processes that carry a mark of their own, beside the ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from perdure.clock import SYSTEM, Clock
from perdure.process.environ import MARK, Placement, child_env, without_mark
from perdure.process.marked import sweep
from perdure.process.tree import die_with
from perdure.supervisor.checks import Context, Result
from perdure.supervisor.vocabulary import Examine, Examined

__all__ = ["Examining"]

_MORE_S = 2.0
_KILL_S = 5.0
_KEPT_BYTES = 1 << 20


class Examining:
    """The checks of one order on node ``name``. ``doctor`` and ``pair`` are the commands that do them.

    For the launcher's main thread; `poll` never blocks for long.
    """

    def __init__(
        self,
        order: Examine,
        *,
        name: str,
        doctor: Sequence[str],
        pair: Sequence[str],
        context: Context,
        placement: Placement,
        env: Mapping[str, str],
        mark: str,
        clock: Clock = SYSTEM,
    ) -> None:
        self.order = order
        self._name, self._mark, self._clock = name, mark, clock
        self._due_s = clock.monotonic() + order.within_s + _MORE_S
        self._output = os.memfd_create("perdure-checks", os.MFD_CLOEXEC)
        if order.group:
            place = [node.name for node in order.group].index(name)
            first = order.group[0]
            alone = replace(
                placement,
                rank=place,
                world=len(order.group),
                local_rank=0,
                local_world=1,
                node=place,
                master_addr=first.host,
                master_port=first.port,
                mark=mark,
            )
            command = [*pair, "--deadline", str(order.within_s)]
            own_env = child_env(alone, base=env)
        else:
            told = msgspec.json.encode(context).decode()
            command = [*doctor, "--checks", ",".join(order.names), "--json", "--context", told]
            command += ["--deadline", str(order.within_s)]
            own_env = without_mark(env) | {MARK: mark}
        self._process = subprocess.Popen(
            command,
            env=own_env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )

    @property
    def pid(self) -> int:
        """Process of the checks."""
        return self._process.pid

    def poll(self) -> Examined | None:
        """What was found, once it is over."""
        if self._process.poll() is None and self._clock.monotonic() < self._due_s:
            return None
        results = self._results()
        bad = tuple(f"{result.check}: {result.says}" for result in results if result.word == "problem")
        if self._process.returncode is None:
            bad = (*bad, f"its checks have not ended within {self.order.within_s:g} s")
        elif not results:
            bad = (*bad, f"its checks said nothing and ended with {self._process.returncode}")
        self.close()
        seconds = next((float(each.facts["seconds"]) for each in results if "seconds" in each.facts), None)
        return Examined(
            node=self._name,
            round=self.order.round,
            bad=bad,
            peers=tuple(node.name for node in self.order.group),
            seconds=seconds,
        )

    def _results(self) -> list[Result]:
        found = []
        for line in os.pread(self._output, _KEPT_BYTES, 0).splitlines():
            try:
                found.append(msgspec.json.decode(line, type=Result))
            except msgspec.MsgspecError:
                continue  # something that a library printed
        return found

    def close(self) -> None:
        """End what still runs. Twice is fine."""
        if self._output < 0:
            return
        if self._process.poll() is None:
            sweep(self._mark, timeout_s=_KILL_S)
            self._process.kill()
            self._process.wait()
        os.close(self._output)
        self._output = -1
