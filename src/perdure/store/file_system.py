"""Which file system a folder lies on, as /proc/self/mountinfo tells it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

__all__ = ["FileSystem", "file_system_of"]

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A mounted file system: its ``type`` (``ext4``), where it comes from, the place it is mounted at, its device."""

    type: str
    source: str
    mount: str
    device: str

    @property
    def key(self) -> str:
        """A name of it that stays the same over restarts of processes, and mostly over those of the machine."""
        return f"{self.type} {self.source} {self.device} {self.mount}"


def file_system_of(path: str, *, mounts: str | None = None) -> FileSystem:
    """The file system of ``path``, or of the nearest folder above it that exists; ``unknown`` where nothing tells.

    ``mounts`` is the text of /proc/self/mountinfo.

    >>> line = "36 35 98:0 / /mnt/my\\\\040disk rw,noatime shared:1 - ext4 /dev/root rw"
    >>> file_system_of("/mnt/my disk/run", mounts=line)
    FileSystem(type='ext4', source='/dev/root', mount='/mnt/my disk', device='98:0')
    """
    if mounts is None:
        path = os.path.realpath(path)
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:  # not Linux, or /proc is not there
            mounts = ""
    found = FileSystem("unknown", "unknown", "/", "0:0")
    longest = -1
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(tail) < 2:
            continue
        mount = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= longest:  # a later mount at the same place lies over the earlier one
            found, longest = FileSystem(tail[0], tail[1], mount, fields[2]), len(mount)
    return found
