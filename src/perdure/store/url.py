"""Where a run is kept, as one value: a folder, a ``file:`` URL, ``ram://name``, or an object store of an adapter.

A URL is text. It is never made a `pathlib.Path`, which would turn ``s3://bucket`` into ``s3:/bucket``. It is shown in
logs, passed to the agent on a command line and kept in commits; so a secret in it is refused before anything can show
it. A URL that is refused, for whatever reason, is repeated no further than its bucket: who mangled it may have mangled
a signed link.

Who opens which scheme, beyond folders and memory, is said by the entry points of the group ``perdure.stores``: a
package that has such an adapter names it there, and this storey needs to know none of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, unquote

from perdure.errors import CallError
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.ram import Ram

__all__ = ["Opener", "StoreUrl", "open_store"]

_URL = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*)://(.*)\Z", re.DOTALL)
_COLLAPSED = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]+):/")
_RAM_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_BUCKET = re.compile(r"\A[A-Za-z0-9$][A-Za-z0-9.@_-]*\Z")
_OPTION = re.compile(r"\A[a-z][a-z0-9_]{0,39}\Z")
_SECRET = re.compile(r"key|secret|token|passw|credential|sig(nature)?\Z|\Asas|\Asv\Z", re.IGNORECASE)
_EXTRAS = dict.fromkeys(("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss"), "objectstore")
_GROUP = "perdure.stores"
_rams: dict[str, Ram] = {}
Opener = Callable[["StoreUrl"], Store]


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed place: ``scheme``, what stands behind ``scheme://`` (for ``file`` the absolute path, decoded), and the
    ``options`` behind the question mark, sorted, as pairs of texts.

    >>> StoreUrl.parse("file:///data/run%207")
    StoreUrl(scheme='file', location='/data/run 7', options=())
    >>> str(StoreUrl.parse("/data/run 7"))
    'file:///data/run%207'
    >>> str(StoreUrl.parse("s3://bucket/run7/?region=eu-west-1"))
    's3://bucket/run7?region=eu-west-1'
    """

    scheme: str
    location: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> StoreUrl:
        """Read a URL or a path; raise `CallError` with the reason if it is neither, or holds a secret."""
        text = os.fspath(text)
        if not text or "\0" in text:
            raise CallError("an empty text, or one with a NUL, is no place for a run: give a folder or a URL")
        match = _URL.match(text)
        if match is None:
            return cls("file", _absolute(text))
        scheme, rest = match[1].lower(), match[2]
        if scheme not in ("file", "ram"):
            return cls(scheme, *_split(scheme, rest))
        if _URL.match(rest):
            raise CallError(f"{text!r} has two schemes; write one", url=text)
        if scheme == "file":
            host, slash, path = rest.partition("/")
            if host not in ("", "localhost") or not slash:
                raise CallError(f"{text!r} names no absolute path; write file:///folder", url=text)
            return cls("file", _absolute("/" + unquote(path)))
        if not _RAM_NAME.match(rest):
            raise CallError(f"{text!r} needs a name of letters, digits, '.', '_', '-': ram://name", url=text)
        return cls(scheme, rest)

    @property
    def shown(self) -> str:
        """As much of the URL as a refusal may repeat: scheme and bucket.

        >>> StoreUrl("s3", "bucket/Signature=abc/run").shown
        's3://bucket'
        """
        return _shown(self.scheme, self.location) if self.scheme not in ("file", "ram") else str(self)

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{quote(self.location)}"
        asked = "&".join(f"{name}={quote(value, safe='/:')}" for name, value in self.options)
        return f"{self.scheme}://{self.location}{'?' if asked else ''}{asked}"


def open_store(
    url: str | os.PathLike[str] | StoreUrl, *, openers: Mapping[str, Opener] = MappingProxyType({})
) -> Store:
    """Open the store at ``url``. ``openers`` (scheme -> function) goes before what is installed.

    ``ram://name`` is the same store for every caller in this process. Nothing is read or made yet.
    Raises `CallError` for a scheme that nobody opens, naming the extra that would.
    """
    place = url if isinstance(url, StoreUrl) else StoreUrl.parse(url)
    if place.scheme in openers:
        return openers[place.scheme](place)
    if place.scheme == "file":
        return Disk(place.location)
    if place.scheme == "ram":
        return _rams.setdefault(place.location, Ram(place.location))
    extra = _EXTRAS.get(place.scheme)
    for entry in importlib.metadata.entry_points(group=_GROUP, name=place.scheme):
        try:
            opener: Opener = entry.load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "perdure":
                raise
            needs = f"perdure[{extra}]" if extra else error.name
            raise CallError(
                f"{place.shown} needs {error.name}, which is not installed: pip install '{needs}'", url=place.shown
            ) from error
        return opener(place)
    if extra is not None:  # a source tree on the path, without its entry points
        raise CallError(
            f"{place.shown} needs perdure installed with the extra '{extra}': pip install 'perdure[{extra}]'",
            url=place.shown,
            extra=extra,
        )
    raise CallError(
        f"{place.shown}: unknown scheme; known are a plain path, file, ram and object stores", url=place.shown
    )


def _shown(scheme: str, location: str) -> str:
    bucket = re.split("[/#]", location)[0]
    return f"{scheme}://{bucket}" if _BUCKET.match(bucket) else f"{scheme}://"


def _split(scheme: str, rest: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Location and options of what stands behind ``scheme://``. No message repeats what could be a secret."""
    location, _, asked = rest.partition("?")
    bucket = location.partition("/")[0]
    if "@" in location and (":" in bucket or not scheme.startswith("abfs")):
        raise CallError(
            f"the {scheme} URL has something in front of an '@'; take it out: credentials come from the environment, "
            "a profile or the machine, never from the URL"
        )
    pairs = dict(parse_qsl(asked, keep_blank_values=True))
    for name in pairs:
        if _SECRET.search(name):
            raise CallError(
                f"the {scheme} URL has an option that looks like a credential; take it out: credentials come from the "
                "environment, a profile or the machine"
            )
        if not _OPTION.match(name):
            raise CallError(
                f"the options of the URL at {_shown(scheme, location)} are mangled: one is no lower-case word; write "
                "?name=value&name=value, in quotes for a shell"
            )
    if "@" in pairs.get("endpoint", ""):
        raise CallError(f"the endpoint of the {scheme} URL has something in front of an '@'; take it out")
    shown = _shown(scheme, location)
    if _URL.match(location):
        raise CallError(f"the {scheme} URL has two schemes; write one")
    if "#" in rest:
        raise CallError(f"the URL at {shown} has a '#', which no name of a store may have; take it out", url=shown)
    if not location.strip("/"):
        raise CallError(f"the {scheme} URL names nothing behind {scheme}://; give a bucket")
    return location.rstrip("/"), tuple(sorted(pairs.items()))


def _absolute(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        raise CallError(f"{path!r}: write the home folder out (in Python: os.path.expanduser)", url=path)
    collapsed = _COLLAPSED.match(path)
    if collapsed:
        raise CallError(
            f"the {collapsed[1]} URL lost a slash, as to pathlib; hand it over as text, with {collapsed[1]}://"
        )
    return os.path.abspath(path)
