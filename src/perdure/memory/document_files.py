"""The files of topic documents: named, read without trust, and replaced so that no save of a person can be lost.

A file is replaced by a rename, with the old one linked aside first: what is aside is compared with what was expected
to be replaced *after* the rename, so that an edit that came between looking and renaming, or goes on through an open
descriptor, is found there and not overwritten. Symlinks are never followed and nothing but regular files is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import unicodedata
from pathlib import Path
from typing import Final

from perdure.errors import FormatRefused
from perdure.memory.document_text import MAX_DOCUMENT_BYTES

__all__ = [
    "aside_of",
    "asides",
    "digest_of",
    "drop",
    "flush",
    "keep_copy",
    "look_of",
    "read_text",
    "slug",
    "stage",
    "swap",
    "sync",
    "take",
]

_ASIDE: Final = re.compile(r"\.was-t(\d{1,18})-([0-9a-f]{16})-[0-9a-f]{8}")
_NEW: Final = re.compile(r"\.new-[0-9a-f]{16}")
_SLUG_BYTES: Final = 120
_RESERVED: Final = re.compile(r"con|prn|aux|nul|com\d|lpt\d")


def slug(title: str) -> str:
    """Return a file name for a title, without its id: NFC, case-folded, of letters and digits of any script.

    >>> slug("Anna & Bob / Straße"), slug("CON"), slug("../..")
    ('anna-bob-strasse', 'con-', 'topic')
    """
    plain = unicodedata.normalize("NFC", unicodedata.normalize("NFC", title).casefold())
    words = "".join(each if each.isalnum() or unicodedata.category(each) in ("Mn", "Mc") else "-" for each in plain)
    name = re.sub(r"-{2,}", "-", words).strip("-")
    while len(name.encode()) > _SLUG_BYTES:
        name = name[:-1].rstrip("-")
    return f"{name}-" if _RESERVED.fullmatch(name) else name or "topic"


def digest_of(data: bytes) -> str:
    """The digest by which an edit is known."""
    return hashlib.sha256(data).hexdigest()[:32]


def look_of(path: Path) -> tuple[int, int, int] | None:
    """Return how a regular file looks from outside, or None where there is none."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def take(path: Path) -> bytes | None:
    """Return the bytes of a regular file, None where there is none. Raises `FormatRefused` for one that is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatRefused(f"cannot be opened ({error.strerror}); make it a file that its owner may read") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatRefused("is no regular file; move it elsewhere")
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise FormatRefused(f"has more than {MAX_DOCUMENT_BYTES} bytes; make documents of it, or tell it with observe")
    return data


def read_text(data: bytes) -> str:
    """Return the text of a document. Raises `FormatRefused` for what was not saved whole or not merged to the end."""
    if not data.strip():
        raise FormatRefused("is empty; restore it, or delete the file to have it written again")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatRefused(f"is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    if "\x00" in text:
        raise FormatRefused("holds NUL bytes; save it as text")
    if re.search(r"^<{7}(?: |$)", text, re.MULTILINE) and re.search(r"^>{7}(?: |$)", text, re.MULTILINE):
        raise FormatRefused("has conflict markers (<<<<<<<); decide which side is right and take them out")
    return text


def stage(path: Path, data: bytes) -> Path:
    """Write what is to become the file ``path`` beside it, and return where; not durable before `flush`."""
    fresh = path.with_name(f".new-{secrets.token_hex(8)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return fresh


def flush(fresh: Path) -> None:
    """Make the bytes of a staged file durable."""
    fd = os.open(fresh, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def swap(path: Path, fresh: Path, *, topic: int, expected: str) -> Path | None:
    """Put a staged file in the place of ``path``; return where the old one lies aside, or None where there was none."""
    try:
        for _ in range(10):
            aside = aside_of(path, topic=topic, expected=expected)
            if aside is not None:
                os.rename(fresh, path)
                return aside
            try:
                os.link(fresh, path, follow_symlinks=False)
            except FileExistsError:
                continue  # somebody saved it in this moment: link that aside
            return None
        raise FormatRefused("comes and goes while it is written; it is tried again later")
    finally:
        with contextlib.suppress(FileNotFoundError):  # renamed
            os.unlink(fresh)


def aside_of(path: Path, *, topic: int, expected: str) -> Path | None:
    """Link a file aside under a name that says whose it is and which bytes were expected; None where there is none."""
    aside = path.with_name(f".was-t{topic}-{(expected or '0' * 16)[:16]}-{secrets.token_hex(4)}")
    try:
        os.link(path, aside, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return aside


def drop(folder: Path, topic: int, file: str, digest: str, new: str) -> None:
    """Take away the file that a topic had under another name; it is looked at once more from aside."""
    path = folder / file
    if file and file != new and look_of(path) is not None:
        aside_of(path, topic=topic, expected=digest)
        os.unlink(path)
        sync(path.parent)


def asides(folder: Path) -> list[tuple[Path, int, str]]:
    """Return what lies aside in a folder, with the topic and the start of the expected digest; sweep what a killed
    writer left half written."""
    found: list[tuple[Path, int, str]] = []
    with contextlib.suppress(FileNotFoundError):
        for each in os.scandir(folder):
            if named := _ASIDE.fullmatch(each.name):
                found.append((Path(each.path), int(named[1]), named[2]))
            elif _NEW.fullmatch(each.name):
                with contextlib.suppress(FileNotFoundError):  # another process swept it
                    os.unlink(each.path)
    return found


def keep_copy(folder: Path, name: str, data: bytes) -> Path:
    """Keep a copy of what could not be taken in, once."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{slug(name.removesuffix('.md'))}-{digest_of(data)[:12]}.md"
    if not path.exists():
        fresh = stage(path, data)
        flush(fresh)
        os.rename(fresh, path)
        sync(folder)
    return path


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
