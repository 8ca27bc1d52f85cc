"""A job that is watched, at the bottom of a terminal: its ranks, how they did in the last minute, what is wrong.

Whatever else is to be read on that terminal, such as what the job prints, goes through `LiveView.pass_on` and appears
above. A thread draws, so that a terminal which is paused does not hold up the watch; a job that prints more than a
paused terminal takes waits, as it would without a view.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from perdure.events.facts import seconds
from perdure.watcher.evidence import Stage
from perdure.watcher.heat import Heat
from perdure.watcher.labels import CLASSES

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from perdure.watcher.evidence import Verdict
    from perdure.watcher.heat import Now
    from perdure.watcher.samples import NodeLook, RankSample

__all__ = ["LiveView", "picture"]

_MOST_WAITING: Final = 4096
_EVERY_S: Final = 0.5
_STRIP_S: Final = 60
_STRIP: Final = 30
_LEAST_ROOM: Final = 4
_MOST_INCIDENTS: Final = 4
_BARS: Final = " ▁▂▃▄▅▆▇█"
_DOING_STYLE: Final = {"gone": "bold red", "stopped": "bold red", "silent": "bold red", "in_kernel": "yellow",
                       "waits": "dim", "finished": "dim"}  # fmt: skip
_STAGE_STYLE: Final = {Stage.SUSPICION: "yellow", Stage.VERDICT: "bold red", Stage.CLEARED: "green"}


class LiveView:
    """The view. `give` and `say` never wait; `pass_on` does where the terminal does. ``console`` is of rich."""

    def __init__(self, *, job: str, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True)
        self._heat = Heat(job=job)
        self._samples: dict[str, Sequence[RankSample]] = {}
        self._open: tuple[Verdict, ...] = ()
        self._job = job
        self._lock = threading.Lock()
        self._lines: deque[str] = deque()
        self._room = threading.Condition()
        self._ending = False
        self._passing: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="perdure-live", daemon=True)
        self._thread.start()

    def give(self, looks: Iterable[NodeLook], *, still_open: Sequence[Verdict], now_s: float) -> None:
        """Show what was seen last."""
        with self._lock:
            for each in looks:
                self._samples[each.node] = each.samples
                self._heat.feed(each.samples, now_s=now_s)
            self._open = tuple(still_open)

    def say(self, line: str) -> None:
        """Print a line above; the oldest is left out if too many wait."""
        with self._room:
            if len(self._lines) >= 2 * _MOST_WAITING:
                self._lines.popleft()
            self._lines.append(line)
            self._room.notify_all()

    def pass_on(self, fd: int) -> None:
        """Print above whatever comes out of ``fd``, which is closed at its end. A thread of its own reads it."""

        def read() -> None:
            torn = b""
            try:
                while data := os.read(fd, 1 << 16):
                    *lines, torn = (torn + data).split(b"\n")
                    for line in lines:
                        self._pass(line)
                    torn = torn[-(1 << 16) :]
            except OSError:
                pass  # whoever wrote is gone
            finally:
                os.close(fd)
            if torn:
                self._pass(torn)

        thread = threading.Thread(target=read, name="perdure-live-pass", daemon=True)
        thread.start()
        self._passing.append(thread)

    def _pass(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]  # of a bar, what it was last
        with self._room:
            self._room.wait_for(lambda: len(self._lines) < _MOST_WAITING or not self._thread.is_alive(), 60.0)
            self._lines.append(text)
            self._room.notify_all()

    def _run(self) -> None:
        from rich.live import Live
        from rich.text import Text

        try:
            with Live(console=self._console, auto_refresh=False, transient=True) as screen:
                while True:
                    with self._room:
                        self._room.wait_for(lambda: bool(self._lines) or self._ending, _EVERY_S)
                        lines = [self._lines.popleft() for _ in range(min(len(self._lines), _MOST_WAITING))]
                        self._room.notify_all()
                        ending = self._ending and not self._lines
                    if lines:
                        self._console.print(Text("\n").join(Text.from_ansi(line) for line in lines), soft_wrap=True)
                    screen.update(self._picture(), refresh=True)
                    if ending:
                        return
        except OSError:
            pass  # the terminal is gone: nobody reads there any more

    def _picture(self) -> Group:
        with self._lock:
            samples = [sample for each in self._samples.values() for sample in each]
            size = self._console.size
            return picture(self._heat, samples, self._open, width=size.width, height=size.height)

    def close(self) -> None:
        """Print what waits, for a few seconds at most, and give the terminal back."""
        for each in self._passing:
            each.join(0.5)  # what the job has left behind may hold its end open
        with self._room:
            self._ending = True
            self._room.notify_all()
        self._thread.join(2.0)
        with self._room:
            rest, alive = list(self._lines), self._thread.is_alive()
        if not alive:
            for line in rest:
                print(line, file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def picture(
    heat: Heat, samples: Sequence[RankSample], still_open: Sequence[Verdict], *, width: int, height: int
) -> Group:
    """The job as rich draws it on a terminal of that size, of which at most two thirds are taken."""
    from rich.console import Group
    from rich.text import Text

    steps = [each.step for each in samples if each.step is not None]
    doing = Counter(each.doing for each in heat.now.values())
    nodes = len({each.node for each in samples})
    parts = [f"{heat.job}: {_many(len(samples), 'rank')} on {_many(nodes, 'node')}"]
    if steps:
        parts.append(f"step {min(steps)}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}")
    parts += [_does(n, word) for word, n in doing.most_common()]
    lines: list[Text | Table] = [Text("─" * width, style="dim"), Text(", ".join(parts), style="bold", no_wrap=True)]
    incidents = _incidents(still_open)
    room = max(_LEAST_ROOM, height * 2 // 3 - len(lines) - 2 - 2 * len(incidents))
    by_rank = sorted(samples, key=lambda each: each.rank)
    if len(samples) <= room:
        lines.append(_ranks(heat, by_rank))
    elif samples:
        some = max(2, (room - 3) // 2)
        worst = {now.rank: n for n, now in enumerate(heat.worst(some))}
        chosen = sorted((each for each in by_rank if each.rank in worst), key=lambda each: worst[each.rank])
        lines += [_ranks(heat, chosen), Text(f"the {len(chosen)} ranks that stand out most; by node:", style="dim")]
        lines.append(_nodes(heat, some))
    return Group(*lines, *incidents)


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _does(n: int, doing: str) -> str:
    """``1 works``, ``2 work``, ``2 in kernel``."""
    return f"{n} {(doing if n == 1 else doing.removesuffix('s')).replace('_', ' ')}"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=False, header_style="dim")
    for name in columns:
        table.add_column(name, justify="left" if name in ("node", "doing", "last minute") else "right", no_wrap=True)
    return table


def _ranks(heat: Heat, samples: Sequence[RankSample]) -> Table:
    from rich.text import Text

    table = _table("rank", "node", "step", "step time", "own work", "to peers", "waits", "doing", "loss", "last minute")
    for each in samples:
        now = heat.now.get(each.rank)
        if now is None:
            continue
        word = now.doing.replace("_", " ") + (f" ({each.phase})" if now.doing in ("works", "starts") else "")
        table.add_row(
            str(each.rank),
            each.node,
            "" if each.step is None else str(each.step),
            "" if each.step_s is None else seconds(each.step_s),
            "" if each.compute_s is None else seconds(each.compute_s),
            "" if now.ratio is None else f"{now.ratio:.2f}",
            "" if now.waits is None else f"{now.waits:.0%}",
            Text(word, style=_DOING_STYLE.get(now.doing, "")),
            "" if each.loss is None else f"{each.loss:.4g}",
            _strip(heat, each.rank),
        )
    return table


def _nodes(heat: Heat, most: int) -> Table:
    """The nodes with the worst ranks."""
    from rich.text import Text

    by_node: dict[str, list[Now]] = {}
    for now in heat.worst(len(heat.now)):
        by_node.setdefault(now.node, []).append(now)
    table = _table("node", "ranks", "step", "to peers", "doing", "last minute")
    for node, ranks in list(by_node.items())[:most]:  # in the order of their worst rank
        steps = [now.step for now in ranks if now.step is not None]
        doing = Counter(now.doing for now in ranks)
        ratios = [now.ratio for now in ranks if now.ratio is not None]
        table.add_row(
            node,
            str(len(ranks)),
            str(min(steps)) if steps else "",
            f"{max(ratios):.2f}" if ratios else "",
            Text(", ".join(_does(n, word) for word, n in doing.most_common(3))),
            _strip(heat, ranks[0].rank),
        )
    return table


def _strip(heat: Heat, rank: int) -> Text:
    """The last minute of a rank: the higher and the redder, the slower than its peers."""
    from rich.text import Text

    text = Text()
    seen = heat.strip(rank, _STRIP_S)
    ratios = [*[None] * (_STRIP_S - len(seen)), *seen]
    wide = _STRIP_S // _STRIP
    for i in range(0, _STRIP_S, wide):
        known = [ratio for ratio in ratios[i : i + wide] if ratio is not None]
        if not known:
            text.append("·", style="dim")
            continue
        ratio = max(known)
        height = max(1, min(8, round(4 + (ratio - 1) * 8)))
        style = "red" if ratio >= 1.2 else "yellow" if ratio >= 1.05 else "green" if ratio > 0.8 else "cyan"
        text.append(_BARS[height], style=style)
    return text


def _incidents(still_open: Sequence[Verdict]) -> list[Text]:
    from rich.text import Text

    lines = []
    for each in still_open[:_MOST_INCIDENTS]:
        who = ", ".join([*(f"rank {rank}" for rank in each.ranks[:8]), *each.nodes[:4]]) or "nobody in particular"
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{each.stage.value} ", style=_STAGE_STYLE[each.stage])
        text.append(f"{each.sentence} [{each.incident}]\n")
        text.append(f"  {who}: {CLASSES[each.label].means}; {each.action.value}, for {each.owner.value}", style="dim")
        lines.append(text)
    if len(still_open) > _MOST_INCIDENTS:
        lines.append(Text(f"... and {len(still_open) - _MOST_INCIDENTS} incidents more", style="dim"))
    return lines
