"""Ask the exporters of a job again and again: pages of Prometheus text in, `NodeLook` out.

Each URL has a thread of its own (`Aside`), so that one that is dead, slow or endless never holds up another. What a
page tells is joined by node: GPUs of dcgm-exporter, the rest of node-exporter, ranks of xpu_timer. A node is what the
page calls it (``Hostname``, ``nodename``, ``pod_name``), else the host of the URL; "gpu-7" and "gpu-7.cluster" are one.

An exporter that does not answer is not a node that is dead. After `FAILS` scrapes in a row it is suspected, if another
one answers at that time: whoever hears nobody is cut off himself. Ranks come with phase ``absent``, since a page does
not say whether they get on, so the analyser does not judge that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from perdure.errors import CallError, PerdureError
from perdure.watcher.aside import Aside
from perdure.watcher.evidence import Evidence
from perdure.watcher.exporters import Exported, gpus_of_dcgm, node_of_exporter, ranks_of_xpu_timer
from perdure.watcher.prometheus import Page, scrape
from perdure.watcher.samples import Looks, NodeLook, NodeSample, RankSample
from perdure.watcher.web import whole_url

__all__ = ["FAILS", "MOST_URLS", "Exporters", "shown_url"]

FAILS: Final = 3
MOST_URLS: Final = 1024
_TIMEOUT_S: Final = 5.0
_QUICK_S: Final = 0.2
"A page that took longer does not tell the time of its node well enough to say that a clock has jumped."


def shown_url(url: str) -> str:
    """A URL without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


@dataclass(frozen=True, slots=True)
class _Answer:
    page: Page
    at_s: float
    took_s: float
    number: int


@dataclass(slots=True)
class _Exporter:
    """One URL. ``fails`` and ``answers`` are written by its thread alone."""

    url: str
    timeout_s: float
    fails: int = 0
    answers: int = 0
    problem: str = ""
    seen: Exported = field(default_factory=Exported)
    taken: int = 0
    nodes: tuple[str, ...] = ()
    ranks: tuple[RankSample, ...] = ()

    def ask(self) -> _Answer:
        began_s = time.monotonic()
        try:
            page = scrape(self.url, timeout_s=self.timeout_s)
        except PerdureError as error:
            self.fails += 1
            self.problem = str(error)
            raise
        ended_s = time.monotonic()
        self.fails, self.problem = 0, ""
        self.answers += 1
        return _Answer(page, (began_s + ended_s) / 2, ended_s - began_s, self.answers)


class Exporters:
    """Asks the exporters at ``urls`` each ``every_s``; `look` gives what is new. It is also the detector of those that
    do not answer. Raises `CallError` for what is no http or https URL.
    """

    def __init__(self, urls: Sequence[str], *, every_s: float = 15.0) -> None:
        if not 0 < len(urls) <= MOST_URLS:
            raise CallError(f"{len(urls)} URLs of exporters: give 1 to {MOST_URLS}")
        timeout_s = min(_TIMEOUT_S, max(every_s, 0.5))
        self._all = [_Exporter(whole_url(url), timeout_s) for url in dict.fromkeys(urls)]
        self._asides = [Aside(each.ask, every_s=every_s, name="exporter") for each in self._all]
        self._names: dict[str, str] = {}
        self._samples: dict[str, NodeSample] = {}
        self._gpus_of: dict[str, _Exporter] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Why exporters did not answer when they were asked last, by URL."""
        return {shown_url(each.url): each.problem for each in self._all if each.fails}

    @property
    def answered(self) -> int:
        """How many exporters have answered at least once."""
        return sum(each.answers > 0 for each in self._all)

    @property
    def ranks(self) -> Mapping[int, str]:
        """The ranks that pages tell of, with their nodes."""
        return {sample.rank: sample.node for each in self._all for sample in each.ranks}

    def wait_first(self) -> None:
        """Wait until every exporter has answered or failed once."""
        for aside in self._asides:
            aside.wait_first(2 * _TIMEOUT_S)

    def look(self, now_s: float, *, attempt: int = 0) -> list[NodeLook]:
        """What has been scraped since the look before, by node. ``attempt`` is that of the ranks, where it is known."""
        changed: set[str] = set()
        for exporter, aside in zip(self._all, self._asides, strict=True):
            answer = aside.latest
            if answer is not None and answer.number != exporter.taken:
                exporter.taken = answer.number
                changed |= self._take(exporter, answer)
        by_node: dict[str, list[RankSample]] = {node: [] for node in changed}
        for each in self._all:
            for sample in each.ranks:
                by_node.setdefault(sample.node, []).append(_now(sample, now_s, answers=each.fails == 0))
        return [
            NodeLook(
                node=node,
                attempt=attempt,
                samples=tuple(samples),
                host=self._host(node) if node in changed else None,
            )
            for node, samples in by_node.items()
        ]

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """Who does not answer, while others do."""
        silent = [each for each in self._all if each.fails >= FAILS]
        if not silent or not any(each.answers and each.fails == 0 for each in self._all):
            return []
        return [
            Evidence(
                kind="exporter-silent",
                at_s=now_s,
                nodes=each.nodes[:1] if len(each.nodes) == 1 else (),
                sentence=f"the exporter {shown_url(each.url)} has not answered {each.fails} times, while others do",
                raw=(each.problem,),
            )
            for each in silent
        ]

    def restarted(self, attempt: int) -> None:
        """Exporters stay what they are."""

    def close(self) -> None:
        """End the threads; those that wait for an answer are left behind."""
        for aside in self._asides:
            aside.close(timeout_s=0.0)

    def _take(self, exporter: _Exporter, answer: _Answer) -> set[str]:
        """Keep what a page tells; return the nodes of which it tells something of their own."""
        page, at_s = answer.page, answer.at_s
        host = urlsplit(exporter.url).hostname or exporter.url
        told: set[str] = set()
        if any(metric.name.startswith("node_") for metric in page.metrics):
            names = page.of("node_uname_info")
            node = self._name(names[0].labels.get("nodename", "") if names else "") or host
            sample = node_of_exporter(page, node=node, at_s=at_s, seen=exporter.seen)
            if answer.took_s > _QUICK_S:
                sample = msgspec.structs.replace(sample, wall_s=None)
            gpus = self._samples[node].gpus if node in self._samples else ()
            self._samples[node] = msgspec.structs.replace(sample, gpus=gpus)
            told.add(node)
        for name, states in gpus_of_dcgm(page).items():
            node = self._name(name) or host
            before = self._samples.get(node, NodeSample(node=node, at_s=at_s))
            self._samples[node] = msgspec.structs.replace(before, at_s=max(at_s, before.at_s), gpus=states)
            self._gpus_of[node] = exporter
            told.add(node)
        ranks = ranks_of_xpu_timer(page, at_s=at_s)
        named = [(sample, self._name(sample.node) or host) for sample in ranks]
        exporter.ranks = tuple(_with(sample, node=node, phase="absent") for sample, node in named)
        exporter.nodes = tuple(sorted(told | {node for _, node in named}))
        return told

    def _host(self, node: str) -> NodeSample:
        """The newest of a node, without the GPUs of an exporter that does not answer any more."""
        sample = self._samples[node]
        source = self._gpus_of.get(node)
        return sample if source is None or source.fails == 0 else msgspec.structs.replace(sample, gpus=())

    def _name(self, name: str) -> str:
        """One name for a node that pages call by its short and its full name: the one that came first."""
        return self._names.setdefault(name.partition(".")[0], name) if name and not _is_address(name) else name


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _with(sample: RankSample, **fields: Any) -> RankSample:
    return msgspec.structs.replace(sample, **fields)


def _now(sample: RankSample, now_s: float, *, answers: bool) -> RankSample:
    """What a page said holds until the next one; of an exporter that fails, nothing does but where the rank is."""
    if answers:
        return _with(sample, at_s=now_s)
    return RankSample(rank=sample.rank, node=sample.node, at_s=now_s, phase="absent")
