"""Where an exception came from: the files of the traceback that it ends.

A TimeoutError or an OSError says little by itself. Raised below a library that speaks to servers it is a connection
that broke on the way to storage or a hub; the same class out of the program's own code is the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perdure.watcher.logs.reading import Line

__all__ = ["from_the_network"]

_START = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r"^\W{0,4}File \"(?P<file>[^\"]+)\", line \d+")
_NETWORK = re.compile(
    r"[/\\](?:urllib3?|requests|httpx|httpcore|aiohttp|botocore|boto3|s3fs|gcsfs|adlfs|fsspec|huggingface_hub"
    r"|google[/\\]\S*(?:storage|api_core)|azure|grpc|http)[/\\]|[/\\]ssl\.py$"
)
_CLASS = re.compile(
    r"^\s*(?:[\w.]+\.)?(?:TimeoutError|timeout|ConnectionError|Connection(?:Reset|Aborted|Refused)Error|BrokenPipeError"
    r"|OSError|SSL\w*Error|IncompleteRead|gaierror|HTTP\w*Error|Client\w*Error|\w*Timeout(?:Error|Exception)?)\b"
)


def from_the_network(lines: Iterable[Line]) -> set[int]:
    """The orders of the lines that end a traceback out of a library for the network, with a class that fits."""
    frames: dict[tuple[str, int | None], list[str]] = {}
    found: set[int] = set()
    for line in lines:
        key = (line.file, line.rank)
        if _START.search(line.text):
            frames[key] = []
        elif match := _FRAME.match(line.text):
            frames.setdefault(key, []).append(match["file"])
        elif key in frames and not line.text.startswith((" ", "\t")):
            files = frames.pop(key)
            if _CLASS.match(line.text) and any(_NETWORK.search(file) for file in files):
                found.add(line.order)
    return found
