"""Hostile folders: links out of the store, pipes, devices, sockets, folders in the place of files, deep trees."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from forging import Case, Forged

SLOT = "slots/0000000002.json"
Place = Callable[[Forged], Path]
PLACES: dict[str, tuple[Place, str]] = {
    "the marker": (lambda run: run.folder / "perdure.json", "open"),
    "an epoch": (lambda run: run.folder / "epochs/0000000001.json", "epoch"),
    "a slot": (lambda run: run.slot, "commit"),
    "a part": (lambda run: run.parts()[0], "catalog"),
    "a pack": (lambda run: run.packs()[0], "all"),
}


def link(path: Path) -> None:
    """The file lies beside, and a link leads there."""
    outside = Path(f"{path}.real")
    shutil.move(path, outside)
    path.symlink_to(outside)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def listening(path: Path) -> None:
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")  # the whole path may be too long for a socket
    os.close(here)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def folder_link(path: Path) -> None:
    """Its folder lies elsewhere, and a link leads there."""
    real = path.parent.parent / "elsewhere"
    shutil.move(path.parent, real)
    path.parent.symlink_to(real)


def file_above(path: Path) -> None:
    """Its folder is a file."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"x")


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere")


WAYS: list[tuple[str, Callable[[Path], None], str, tuple[str, ...]]] = [
    ("is a link", link, "plain file|symbolic link", ("corrupt",)),
    ("is a link to itself", loop, "plain file|symbolic link", ("corrupt",)),
    ("is a link to nowhere", dangling, "plain file|symbolic link", ("corrupt",)),
    ("is a pipe", pipe, "not a plain file", ("corrupt",)),
    ("is a socket", listening, "not a plain file|cannot open", ("corrupt",)),
    ("is a folder", folder, "not there", ("missing",)),
    ("is empty", empty, "corrupt|not the p", ("corrupt",)),
    ("is in a folder that is a link", folder_link, "symbolic link", ("storage",)),
    ("is in a file", file_above, "not there", ("missing",)),
]  # fmt: skip


def case(place: str, way: str, make: Callable[[Path], None], words: str, kinds: tuple[str, ...]) -> Case:
    of, reader = PLACES[place]
    return Case(f"folder: {place} {way}", lambda run: make(of(run)), words, reader, kinds=kinds)


def device(run: Forged) -> None:
    """A character device; only root can make one, and nobody can in some containers."""
    path = run.packs()[0]
    path.unlink()
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: endless


CASES = [
    case(place, *way) for place in PLACES for way in WAYS if not (place == "the marker" and way[0].startswith("is in"))
]


def may_make_devices(folder: Path) -> bool:
    try:
        os.mknod(folder / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    except OSError:
        return False
    (folder / "zero").unlink()
    return True
