"""The standby interpreter of a node: one that has imported what ranks import, from which each attempt is forked.

Worth it only where imports take long, so only where the command imports one of the libraries that do. Whatever goes
wrong with it costs time only: ranks are then started cold, and the reason is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perdure.clock import SYSTEM, Clock, Deadline
from perdure.errors import PerdureError
from perdure.process.environ import MARK
from perdure.process.tree import Rank
from perdure.process.zygote import Zygote, modules_of

__all__ = ["StandbyRanks"]

_HEAVY: Final = frozenset({"torch", "transformers", "tensorflow", "jax", "pandas", "scipy", "sklearn", "deepspeed"})
_WARM_UP_S: Final = 120.0
_FORK_S: Final = 20.0


class StandbyRanks:
    """Starts ranks of ``command``, from a standby interpreter where there is one. For the main thread alone."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        run_mark: str,
        wanted: bool,
        say: Callable[[str], None],
        calls: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """``calls`` is a ``module:function`` that each forked rank calls before its script."""
        self._command, self._calls = command, calls
        self._env = dict(env) | {MARK: f"{run_mark}.standby"}
        self._say, self._clock = say, clock
        self._zygote: Zygote | None = None
        self._since_s = clock.monotonic()
        self._preload = modules_of(command) if wanted else None
        if self._preload is not None and not {name.partition(".")[0] for name in self._preload} & _HEAVY:
            self._preload = None
        self._start()

    def _start(self) -> None:
        if self._preload is None:
            return
        self._since_s = self._clock.monotonic()
        try:
            self._zygote = Zygote.start(self._command, preload=self._preload, env=self._env, calls=self._calls)
        except PerdureError as error:
            self._give_up(str(error))

    @property
    def pid(self) -> int | None:
        """Process of the standby interpreter."""
        return None if self._zygote is None else self._zygote.pid

    @property
    def state(self) -> str:
        """``off``, ``warming`` or ``ready``."""
        if self._zygote is None:
            return "off"
        return "ready" if self._zygote.ready() else "warming"

    def wait(self) -> bool:
        """Whether ranks should not be started yet, because they will be forked soon."""
        if self._zygote is None:
            return False
        if (refusal := self._zygote.refusal()) is not None:
            self._give_up(refusal)
            return False
        if self._zygote.ready():
            return False
        if self._clock.monotonic() - self._since_s < _WARM_UP_S:
            return True
        self._give_up(f"the standby interpreter has not imported everything within {_WARM_UP_S:g} s")
        return False

    def start(self, env: Mapping[str, str]) -> Rank:
        """Start a rank with the environment ``env``. Raises `CallError` if there is no such command."""
        if self._zygote is not None:
            try:
                deadline = Deadline.after(_FORK_S, "the standby interpreter to fork a rank")
                return Rank.fork(self._zygote, self._command, env=env, deadline=deadline)
            except PerdureError as error:
                self._give_up(str(error))
        return Rank.start(self._command, env=env)

    def _give_up(self, why: str) -> None:
        self._say(f"ranks are started without a standby interpreter: {why}")
        self.close()

    def renew(self) -> None:
        """Between two attempts: have another one if the one before has died."""
        if self._zygote is not None and self._zygote.refusal() is not None:
            self.close()
            self._start()

    def close(self) -> None:
        """End it; ranks live on. Twice is fine."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
