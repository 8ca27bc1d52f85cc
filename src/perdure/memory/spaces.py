"""A folder for each space, and no way from one into another: the name of a space is encoded, never joined as a path."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from perdure.errors import CallError
from perdure.store.refusals import explained

__all__ = ["folder_of", "make_folder", "spaces_in"]

_LONGEST: Final = 200


def folder_of(root: Path, space: str) -> Path:
    """Return the folder of a space.

    Two names that look alike to Unicode (NFC) are one space; names that differ in case only are two, also where the
    file system does not tell them apart. Raises `CallError` for an empty, overlong or undecodable name.

    >>> folder_of(Path("/m"), "default"), folder_of(Path("/m"), "../x y")
    (PosixPath('/m/default'), PosixPath('/m/%2E%2E%2Fx%20y'))
    """
    if not space:
        raise CallError("a space needs a name, as 'default'")
    try:
        encoded = quote(unicodedata.normalize("NFC", space), safe="-_")
    except UnicodeEncodeError as error:
        raise CallError("the name of a space must be Unicode text; this one has a lone surrogate") from error
    encoded = (
        "".join(
            f"%{ord(each):02X}" if each.isascii() and each.isupper() and not _in_escape(encoded, at) else each
            for at, each in enumerate(encoded)
        )
        .replace(".", "%2E")
        .replace("~", "%7E")
    )
    if len(encoded) > _LONGEST:
        raise CallError(
            f"the name of a space may take {_LONGEST} characters when encoded; this one takes {len(encoded)}"
        )
    return root / encoded


def make_folder(folder: Path) -> None:
    """Make the folder of a space, and the one of all spaces where there is none, which only this user may enter.

    Raises `perdure.errors.StorageError` where it cannot be made.
    """
    with explained(str(folder), "make"):
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def spaces_in(root: Path) -> list[str]:
    """The names of the spaces that lie under ``root``."""
    if not root.is_dir():
        return []
    return sorted(unquote(each.name) for each in root.iterdir() if (each / "ledger.db").is_file())


def _in_escape(text: str, at: int) -> bool:
    return "%" in text[max(0, at - 2) : at]
