"""A piece of memory that processes hand to one another by descriptor.

It has no name in any file system, so nothing is left behind when its last holder dies, however it dies. Its size is
sealed when it is made: no holder can shrink it under another, so that touching a mapped byte never raises SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from types import TracebackType
from typing import Final, Self

import numpy as np

from perdure.errors import CallError, FormatRefused, StorageError, StorageFull

__all__ = ["Segment"]

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MFD_NOEXEC_SEAL: Final = 0x8  # linux/memfd.h, since Linux 6.3
_MADV_HUGEPAGE: Final = 14  # linux/mman.h
_MADV_POPULATE: Final = {False: 22, True: 23}  # linux/mman.h, since Linux 5.14: _READ, _WRITE
_HUGE_BYTES: Final = 16 << 20  # below, the last huge page would waste too large a part
_MAX_BYTES: Final = 1 << 56  # more than any address space has
_CHUNK_BYTES: Final = 256 << 20  # between two chunks of `populate` signals are seen
_LABEL_BYTES: Final = 200  # the kernel allows 249

_libc = ctypes.CDLL(None, use_errno=True)  # a call through it releases the interpreter's lock
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Segment:
    """``nbytes`` bytes of shared memory, mapped into this process; Linux only. Use `create` or `attach`.

    Each Segment owns its descriptor (close-on-exec) and its mapping; both end with `close` or with the object. The
    memory itself lives as long as any process holds a descriptor or a mapping of it, including a descriptor in flight
    in a message. A Segment may be used from any thread; `close` is for the thread that knows that no other still uses
    `view`.

    >>> with Segment.create(4096, label="example") as ours, Segment.attach(ours.fd, writable=False) as theirs:
    ...     ours.view[:5] = b"hello"
    ...     bytes(theirs.view[:5])
    b'hello'
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        """Map ``fd``, which this object owns from here on; use `create` or `attach`."""
        self._end = weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._nbytes = nbytes
        self._writable = writable
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        try:
            self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=protection)
        except OSError as error:
            self._end()
            raise _refused("map", nbytes, error) from error
        self._address = int(np.frombuffer(self._map, np.uint8).__array_interface__["data"][0])
        self._view = memoryview(self._map)
        if nbytes >= _HUGE_BYTES:
            _advise(self._address, nbytes, _MADV_HUGEPAGE)  # a wish: where it is not granted, pages are small

    @classmethod
    def create(cls, nbytes: int, *, label: str) -> Segment:
        """Make a segment of ``nbytes`` zero bytes (at least 1), writable here, its size sealed for ever.

        ``label`` is for people: it shows in ``/proc/PID/maps`` and need not be unique. Memory is taken page by page on
        first touch; `populate` takes it all now.

        Raises: `CallError` for a size out of bounds; `StorageFull` if the kernel has no room or no descriptor left.
        """
        if not 1 <= nbytes <= _MAX_BYTES:
            raise CallError(f"a segment has from 1 to {_MAX_BYTES} bytes, not {nbytes}", nbytes=nbytes)
        name = f"perdure:{label}".encode(errors="replace").replace(b"\0", b"?")[:_LABEL_BYTES]
        try:
            fd = _memfd(os.fsdecode(name))
        except OSError as error:
            raise _refused("create", nbytes, error) from error
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            os.close(fd)
            raise _refused("size", nbytes, error) from error
        return cls(fd, nbytes, writable=True)

    @classmethod
    def attach(cls, fd: int, *, writable: bool) -> Segment:
        """Map the segment behind a descriptor that another process sent, or another Segment of this one holds.

        ``fd`` is duplicated: the caller still owns its own descriptor and may close it at once. Whoever receives a
        descriptor from a peer need not trust it: its kind, seals and size are checked before it is mapped.

        Raises: `FormatRefused` if ``fd`` is not a memory segment whose size is sealed; `CallError` if it is no
        descriptor.
        """
        try:
            own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        except (OSError, ValueError) as error:
            raise CallError(f"{fd} is no open descriptor", fd=fd) from error
        try:
            seals = fcntl.fcntl(own, fcntl.F_GET_SEALS)
        except OSError:  # a file of another kind: has no seals at all
            seals = 0
        nbytes = os.fstat(own).st_size
        if seals & _SIZE_SEALS != _SIZE_SEALS or nbytes < 1:
            os.close(own)
            raise FormatRefused("the descriptor is no memory segment with a sealed size", fd=fd, nbytes=nbytes)
        return cls(own, nbytes, writable=writable)

    @property
    def fd(self) -> int:
        """The descriptor; still owned by this object, so duplicate or send it, never close it."""
        self._check_open()
        return self._fd

    @property
    def nbytes(self) -> int:
        """Size in bytes, also after `close`."""
        return self._nbytes

    @property
    def untouched_nbytes(self) -> int:
        """Bytes for which no memory has been taken yet, by whichever process."""
        self._check_open()
        return max(0, self._nbytes - os.fstat(self._fd).st_blocks * 512)

    @property
    def view(self) -> memoryview:
        """All bytes, format ``B``; read-only unless writable. Arrays over it must be gone before `close`."""
        self._check_open()
        return self._view

    @property
    def address(self) -> int:
        """Where the first byte is mapped in this process; a multiple of the page size. Valid until `close`."""
        self._check_open()
        return self._address

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return not self._end.alive

    def populate(self) -> None:
        """Take all pages now, so that no later touch waits for the kernel; content is kept.

        Releases the interpreter's lock; sees signals every 256 MiB. Takes about as long as writing the memory once.
        After a failure the segment is as usable as before.

        Raises: `StorageFull` if there is not enough memory (a limit of the container included).
        """
        self._check_open()
        start = 0
        while start < self._nbytes:
            size = min(_CHUNK_BYTES, self._nbytes - start)
            code = _advise(self._address + start, size, _MADV_POPULATE[self._writable])
            if code == errno.EINTR:  # Python runs the signal's handler between two calls
                continue
            if code == errno.EINVAL:
                self._touch(start, size)
            elif code != 0:
                raise _refused("populate", self._nbytes, OSError(code, os.strerror(code)))
            start += size

    def close(self) -> None:
        """Unmap and close; a second call does nothing.

        Raises: `CallError` if an array or a slice of `view` still lives, since it would point at nothing; the segment
        then stays open and usable, and `close` may be called again.
        """
        if self.closed:
            return
        try:
            self._view.release()
            self._map.close()
        except BufferError as error:
            self._view = memoryview(self._map)
            raise CallError("the segment is still in use: delete the arrays and slices made from its view") from error
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"fd={self._fd}"
        return f"Segment({state}, nbytes={self._nbytes}, writable={self._writable})"

    def _check_open(self) -> None:
        if self.closed:
            raise CallError("the segment is closed")

    def _touch(self, start: int, size: int) -> None:
        """Populate where there is no MADV_POPULATE: reserve first, so that lack of memory is no signal but an error."""
        try:
            os.posix_fallocate(self._fd, start, size)
        except OSError as error:
            raise _refused("populate", self._nbytes, error) from error
        # A read maps the page and, unlike a write of the byte just read, cannot undo what another process writes.
        np.frombuffer(self._map, np.uint8, size, start)[:: mmap.PAGESIZE].max()


def _memfd(name: str) -> int:
    """An empty anonymous file that can be sealed and, where the kernel knows how, can never be executed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)


def _advise(address: int, nbytes: int, advice: int) -> int:
    """madvise(2); 0 or the errno."""
    return 0 if _libc.madvise(address, nbytes, advice) == 0 else ctypes.get_errno()


def _refused(verb: str, nbytes: int, error: OSError) -> StorageError:
    """The error of the tree for what the kernel answered."""
    message = f"cannot {verb} a memory segment of {nbytes} bytes: {error.strerror}"
    full = error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EFAULT)
    return (StorageFull if full else StorageError)(message, errno=error.errno, nbytes=nbytes)
