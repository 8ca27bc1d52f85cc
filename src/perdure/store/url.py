"""Where a run is kept, as one value: a folder, a ``file:`` URL, ``ram://name``, or an object store of an adapter.

A URL is text. It is never made a `pathlib.Path`, which would turn ``s3://bucket`` into ``s3:/bucket``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote, unquote

from perdure.errors import CallError
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.ram import Ram

__all__ = ["StoreUrl", "open_store"]

_URL = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*)://(.*)\Z", re.DOTALL)
_COLLAPSED = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+):/")
_RAM_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_EXTRAS = dict.fromkeys(("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss"), "objectstore")
_rams: dict[str, Ram] = {}
Opener = Callable[["StoreUrl"], Store]


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed place: ``scheme`` and what stands behind ``scheme://`` (for ``file`` the absolute path, decoded).

    >>> StoreUrl.parse("file:///data/run%207")
    StoreUrl(scheme='file', location='/data/run 7')
    >>> str(StoreUrl.parse("/data/run 7"))
    'file:///data/run%207'
    >>> str(StoreUrl.parse("s3://bucket/run7/"))
    's3://bucket/run7'
    """

    scheme: str
    location: str

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> StoreUrl:
        """Read a URL or a path; raise `CallError` with the reason if it is neither."""
        text = os.fspath(text)
        if not text or "\0" in text:
            raise CallError(f"{text!r} is no place for a run: give a folder or a URL")
        match = _URL.match(text)
        if match is None:
            return cls("file", _absolute(text))
        scheme, rest = match[1].lower(), match[2]
        if _URL.match(rest):
            raise CallError(f"{text!r} has two schemes; write one", url=text)
        if scheme == "file":
            host, slash, path = rest.partition("/")
            if host not in ("", "localhost") or not slash:
                raise CallError(f"{text!r} names no absolute path; write file:///folder", url=text)
            return cls("file", _absolute("/" + unquote(path)))
        if scheme == "ram" and not _RAM_NAME.match(rest):
            raise CallError(f"{text!r} needs a name of letters, digits, '.', '_', '-': ram://name", url=text)
        if not rest.strip("/"):
            raise CallError(f"{text!r} names nothing behind {scheme}://", url=text)
        return cls(scheme, rest.rstrip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{quote(self.location) if self.scheme == 'file' else self.location}"


def open_store(
    url: str | os.PathLike[str] | StoreUrl, *, openers: Mapping[str, Opener] = MappingProxyType({})
) -> Store:
    """Open the store at ``url``. ``openers`` (scheme -> function) is how adapters are introduced.

    ``ram://name`` is the same store for every caller in this process. Nothing is read or made yet.
    Raises `CallError` for a scheme that nobody opens, naming the extra that would.
    """
    place = url if isinstance(url, StoreUrl) else StoreUrl.parse(url)
    if place.scheme in openers:
        return openers[place.scheme](place)
    if place.scheme == "file":
        return Disk(place.location)
    if place.scheme == "ram":
        return _rams.setdefault(place.location, Ram())
    extra = _EXTRAS.get(place.scheme)
    if extra is not None:
        raise CallError(
            f"{place} needs the extra '{extra}': pip install 'perdure[{extra}]'", url=str(place), extra=extra
        )
    raise CallError(f"{place}: unknown scheme; known are a plain path, file, ram and object stores", url=str(place))


def _absolute(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        raise CallError(f"{path!r}: write the home folder out (in Python: os.path.expanduser)", url=path)
    collapsed = _COLLAPSED.match(path)
    if collapsed:
        raise CallError(f"{path!r} looks like a URL that lost a slash to pathlib; hand it over as text", url=path)
    return os.path.abspath(path)
