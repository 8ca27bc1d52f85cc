"""Read Prometheus and OpenMetrics text, whoever wrote it: what is malformed is left out and told, and all is bounded.

`parse` takes format 0.0.4, OpenMetrics 1.0 (``# EOF``, exemplars, units) and the quoted names of Prometheus 3. What the
names of known exporters mean is in `perdure.watcher.exporters`.
"""

from __future__ import annotations

import math
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.errors import CallError, DeadlineExceeded, StorageError
from perdure.watcher.web import opener, whole_url

__all__ = ["MOST_BYTES", "Metric", "Page", "parse", "scrape"]

MOST_BYTES: Final = 16 << 20
_MOST_METRICS: Final = 200_000
_MOST_LABELS: Final = 64
_LONGEST_LINE: Final = 1 << 16
_LONGEST_VALUE: Final = 1024
_MOST_PROBLEMS: Final = 8
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"\s*(?:([a-zA-Z_][a-zA-Z0-9_.]*)|\"((?:[^\"\\\n]|\\.)*)\")\s*")
_VALUE: Final = re.compile(r"=\s*\"((?:[^\"\\\n]|\\.)*)\"\s*")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[iI]nf(?:inity)?|[nN]a[nN])")
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample. ``at_s`` are seconds since 1970 if the page says when it was taken."""

    name: str
    labels: Mapping[str, str]
    value: float
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page's samples in its order. ``left_out`` counts lines that could not be read or were too many."""

    metrics: tuple[Metric, ...]
    left_out: int = 0
    problems: tuple[str, ...] = ()
    "The first of them, in words."
    _by_name: dict[str, list[Metric]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, name: str) -> list[Metric]:
        """The samples with this name."""
        if not self._by_name:
            for metric in self.metrics:
                self._by_name.setdefault(metric.name, []).append(metric)
        return self._by_name.get(name, [])


class _Malformed(Exception):
    """What is wrong with a line."""


def parse(text: str | bytes) -> Page:
    """Read a page. Never raises: what cannot be read is in ``left_out``.

    >>> page = parse('# TYPE up gauge\\nup{node="a\\\\"b"} 1 1700000000000\\nup{ 1\\n')
    >>> page.metrics[0].labels, page.metrics[0].at_s, page.left_out
    ({'node': 'a"b'}, 1700000000.0, 1)
    """
    if isinstance(text, bytes):
        text = text[:MOST_BYTES].decode(errors="replace")
    elif len(text) > MOST_BYTES:
        text = text[:MOST_BYTES]
    open_metrics = text.rstrip().endswith("# EOF")
    metrics: list[Metric] = []
    problems: list[str] = []
    left_out = 0
    for number, line in enumerate(_lines(text), 1):
        if line == "# EOF":
            break
        if not line or line.startswith("#"):
            continue
        try:
            if len(metrics) >= _MOST_METRICS:
                raise _Malformed("there are too many samples")
            metrics.append(_metric(line, open_metrics))
        except _Malformed as problem:
            left_out += 1
            if len(problems) < _MOST_PROBLEMS:
                problems.append(f"line {number}: {problem}")
    return Page(tuple(metrics), left_out, tuple(problems))


def scrape(url: str, *, timeout_s: float = 5.0) -> Page:
    """Fetch and read a page over http or https; redirects are not followed.

    Raises `CallError` for another URL, `DeadlineExceeded` after ``timeout_s`` in all however slowly it comes,
    `StorageError` if it cannot be had.
    """
    whole_url(url)
    request = urllib.request.Request(
        url, headers={"Accept": "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5"}
    )
    got: list[bytes | Exception] = []
    give_up = time.monotonic() + timeout_s

    def fetch() -> None:
        try:
            with opener().open(request, timeout=timeout_s) as answer:
                chunks: list[bytes] = []
                length = 0
                while length < MOST_BYTES and time.monotonic() < give_up:
                    chunk = answer.read1(min(1 << 16, MOST_BYTES - length))
                    if not chunk:
                        got.append(b"".join(chunks))
                        return
                    chunks.append(chunk)
                    length += len(chunk)
            got.append(StorageError(f"{url} gave more than {MOST_BYTES >> 20} MiB, or came too slowly", url=url))
        except urllib.error.HTTPError as error:
            error.close()
            got.append(error)
        except Exception as error:  # whatever a server's answer makes the library raise
            got.append(error)

    thread = threading.Thread(target=fetch, name="perdure-scrape", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not got:
        raise DeadlineExceeded(f"{url} did not answer within {timeout_s:g} s", what=url)
    (result,) = got
    if isinstance(result, CallError | StorageError):
        raise result
    if isinstance(result, TimeoutError) or isinstance(getattr(result, "reason", None), TimeoutError):
        raise DeadlineExceeded(f"{url} did not answer within {timeout_s:g} s", what=url)
    if isinstance(result, Exception):
        raise StorageError(f"{url} cannot be read: {result}", url=url) from result
    return parse(result)


def _lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].strip(" \t\r")
        start = end + 1


def _metric(line: str, open_metrics: bool) -> Metric:
    if len(line) > _LONGEST_LINE:
        raise _Malformed("it is too long")
    found = _NAME.match(line)
    name, at = (found[0], found.end()) if found else ("", 0)
    at = _skip(line, at)
    labels: dict[str, str] = {}
    if line[at : at + 1] == "{":
        name, labels, at = _inside(line, at + 1, name)
    elif found is None:
        raise _Malformed("it begins with no name")
    if not name:
        raise _Malformed("it has no name")
    words = line[at:].partition(" # ")[0].split()
    if not 1 <= len(words) <= 2 or not _NUMBER.fullmatch(words[0]):
        raise _Malformed("there is no number where the value should be")
    at_s = None
    if len(words) == 2:
        if not _NUMBER.fullmatch(words[1]):
            raise _Malformed("there is no number where its time should be")
        at_s = float(words[1]) / (1 if open_metrics else 1000)
        if not math.isfinite(at_s):
            at_s = None
    return Metric(name, labels, float(words[0]), at_s)


def _inside(line: str, at: int, name: str) -> tuple[str, dict[str, str], int]:
    """Name, labels and where what follows the closing brace begins."""
    labels: dict[str, str] = {}
    while True:
        at = _skip(line, at)
        if line[at : at + 1] == "}":
            return name, labels, at + 1
        key = _LABEL.match(line, at)
        if key is None:
            raise _Malformed("a label has no name")
        word = key[1] if key[1] is not None else _unescaped(key[2])
        value = _VALUE.match(line, key.end())
        if value is not None:
            if word in labels or len(labels) >= _MOST_LABELS:
                raise _Malformed("a label is there twice" if word in labels else "it has too many labels")
            labels[word] = _unescaped(value[1])[:_LONGEST_VALUE]
            at = value.end()
        elif key[1] is None and not name:
            name, at = word, key.end()
        else:
            raise _Malformed("a label has no value")
        if line[at : at + 1] == ",":
            at += 1
        elif line[at : at + 1] != "}":
            raise _Malformed("the labels do not end")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), text) if "\\" in text else text


def _skip(line: str, at: int) -> int:
    while line[at : at + 1] in (" ", "\t"):
        at += 1
    return at
