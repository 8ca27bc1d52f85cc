"""What was found to be the best way to write to each file system, kept for this user from run to run.

One small JSON file in the user's cache folder, replaced as a whole. It is advice: a file that is not there or cannot be
understood means the default, never an error.
"""

from __future__ import annotations

import contextlib
import os
import secrets

import msgspec

from perdure.errors import CallError, StorageError
from perdure.process.environ import cache_home, io_override
from perdure.store.file_system import file_system_of
from perdure.store.io_choice import Io, default_io, usable
from perdure.store.refusals import explain

__all__ = ["Source", "choose_io", "io_for", "recall", "remember", "remembered_file"]

_LIMIT_BYTES = 1 << 20
_LIMIT_ENTRIES = 1000

Source = str
"""Who chose, as words: ``PERDURE_IO``, ``calibrated``, ``default``."""


def remembered_file() -> str:
    """Where it is kept."""
    return os.path.join(cache_home(), "perdure", "io.json")


def io_for(path: str) -> Io:
    """How large blobs are written below ``path``; it need not exist yet."""
    return choose_io(path)[0]


def choose_io(path: str) -> tuple[Io, Source]:
    """How large blobs are written below ``path``, and who says so.

    Raises: `CallError` if PERDURE_IO is set and is no way to write.
    """
    override = io_override()
    if override is not None:
        try:
            return usable(Io.parse(override)), "PERDURE_IO"
        except CallError as error:
            raise CallError(f"PERDURE_IO: {error}") from error
    system = file_system_of(path)
    found = recall(system.key)
    return (usable(found), "calibrated") if found is not None else (default_io(system.type), "default")


def recall(key: str) -> Io | None:
    """What was remembered for the file system with this key."""
    text = _read().get(key)
    try:
        return None if text is None else Io.parse(text)
    except CallError:  # another release's, or somebody's edit
        return None


def remember(key: str, io: Io) -> str:
    """Keep ``io`` for the file system with this key; return the file. Raises `StorageError` if it cannot be written."""
    file = remembered_file()
    known = {**_read(), key: str(io)}
    for oldest in list(known)[: max(0, len(known) - _LIMIT_ENTRIES)]:
        del known[oldest]
    temporary = f"{file}.{secrets.token_hex(8)}"
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        with open(temporary, "xb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
        os.replace(temporary, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        failure: StorageError = explain(error, file, "write")
        raise failure from error
    return file


def _read() -> dict[str, str]:
    try:
        with open(remembered_file(), "rb") as file:
            return msgspec.json.decode(file.read(_LIMIT_BYTES), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
