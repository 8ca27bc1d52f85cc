"""The six verbs over an object store.

Theory. What a folder does with ``link`` an object store does with a condition: ``If-None-Match: *`` on a PUT (on Azure
and Google their like), which the server refuses if the name is taken. Four things stand between that and the contract:

* *A server may ignore the condition* and answer 200 to everybody. So before the first write of a process, one probe
  name is created twice; where the second is not refused, nothing is written and the place is refused.
* *A response may be lost.* Conditional requests are never repeated by the client below, which would take its own
  success for somebody else's. Each write carries a token of its own in the blob's metadata; after an unclear outcome
  the token says whose the blob is.
* *A conflict is not a "no".* S3 answers 409 while another write of that name is under way, which may yet fail. A
  refusal counts once the blob is there.
* *A multipart upload has no condition below.* A blob of more than one part is looked for before its first and again
  before its last part is sent; between that look and the completion of the upload another writer of the same name could
  be replaced. perdure's packs have names that no two writers share (epoch, writer, attempt); whatever decides anything
  is small and goes through `create`.

A blob is visible when its upload is completed, not before. An upload whose chunks fail is aborted; one whose process
dies lies there unseen, and costs money, until `sweep_uploads` or a lifecycle rule of the bucket takes it away.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions

from perdure.adapters.objectstore.fetch import Fetch
from perdure.adapters.objectstore.multipart import Parts, upload
from perdure.adapters.objectstore.refusals import REFUSALS, explain, explained
from perdure.adapters.objectstore.uploads import DAY_S, Upload, Uploads
from perdure.adapters.objectstore.url import Place
from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError, StorageError, TryAgain
from perdure.process.environ import aws_variables
from perdure.store.api import as_bytes, check_name, check_prefix, is_name, taken
from perdure.store.retry import Retry
from perdure.store.url import StoreUrl

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["PROBE", "ObjectStore", "open_object_store"]

PROBE = ".perdure-probe"  # no name of a blob: it begins with a dot
_TOKEN = "perduretoken"  # letters alone: Azure takes no dash, and some proxies drop what has an underscore
_RETRIES = 4  # of requests that may be repeated: reads, and the parts of an upload
_PARTS = 10_000  # that S3 allows
_CONFLICTS = 50
_CONFLICT_S = 0.1


def open_object_store(url: StoreUrl) -> Retry:
    """Open the store at ``url``, tried again where that helps: what the entry points name. Nothing is sent yet."""
    return Retry(ObjectStore(url))


class ObjectStore:
    """A run in a bucket: ``s3://bucket/run``, ``gs://bucket/run``, ``az://container/run``.

    A `put` holds at most about eight parts in memory (16 MiB each by default, ``?part_mib=``).
    """

    def __init__(self, url: StoreUrl | str | os.PathLike[str], *, clock: Clock = SYSTEM) -> None:
        place = Place.of(url if isinstance(url, StoreUrl) else StoreUrl.parse(url), variables=aws_variables())
        self.place = place
        self._clock = clock
        self._client = place.connect(retries=_RETRIES)
        self._once = place.connect(retries=0)
        self._fetch = Fetch(self._client)
        self._probed = False

    def __repr__(self) -> str:
        return f"ObjectStore({str(self.place)!r})"

    def __str__(self) -> str:
        return self.place.url.partition("?")[0]

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        file = self._file(name)
        self._check_conditions()
        parts = Parts(chunks, self.place.part_bytes)
        first = parts.next_part()
        if parts.at_end:
            written = self._create(self.place.key(name), first, file)
        else:
            written = self._upload(name, first, parts, file)
        if not written:
            raise taken(name, file=file)

    def create(self, name: str, data: Buffer) -> bool:
        file = self._file(name)
        self._check_conditions()
        return self._create(self.place.key(name), as_bytes(data), file)

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        file = self._file(name)
        target = None if into is None else as_bytes(into)
        return self._fetch.read(name, self.place.key(name), file, start=start, nbytes=nbytes, target=target)

    def size(self, name: str) -> int | None:
        return self._fetch.size(self.place.key(check_name(name)), self._file(name))

    def names(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        # A listing below goes by whole folders; the rest of the prefix is compared here.
        folder = self.place.key(prefix.rpartition("/")[0]).rstrip("/")
        skip = len(self.place.prefix) + 1 if self.place.prefix else 0
        found: list[str] = []
        with explained(str(self.place), "list"):
            for batch in obstore.list(self._client, folder or None, chunk_size=1000):
                found += [meta["path"][skip:] for meta in batch]
        return sorted(name for name in found if name.startswith(prefix) and is_name(name))

    def delete(self, name: str) -> None:
        file = self._file(name)
        try:
            obstore.delete(self._client, self.place.key(name))
        except FileNotFoundError:
            pass  # it was gone already
        except REFUSALS as error:
            raise explain(error, file, "delete") from None

    def abandoned_uploads(self, *, older_than_s: float = DAY_S) -> list[Upload]:
        """Multipart uploads of this run that were begun so long ago, by the server's clock, and never completed.

        Raises `CallError` for less than a day (a slow writer of a large pack is not dead) and where the kind of store
        keeps no such list: Azure forgets uncommitted blocks after a week by itself, Google's buckets need a
        lifecycle rule (AbortIncompleteMultipartUpload).
        """
        return Uploads.of(self.place, self._client).abandoned(older_than_s=older_than_s)

    def sweep_uploads(self, *, older_than_s: float = DAY_S) -> list[Upload]:
        """Abort what `abandoned_uploads` lists; return it. Never called by the store itself."""
        uploads = Uploads.of(self.place, self._client)
        stale = uploads.abandoned(older_than_s=older_than_s)
        for cut in stale:
            uploads.abort(cut)
        return stale

    def leftovers(self) -> list[str]:
        """See `perdure.store.leftovers.Sweeps`."""
        return [each.name for each in self.abandoned_uploads()]

    def sweep(self) -> list[str]:
        """See `perdure.store.leftovers.Sweeps`."""
        return [each.name for each in self.sweep_uploads()]

    def _file(self, name: str) -> str:
        return self.place.file(check_name(name))

    def _check_conditions(self) -> None:
        """Refuse a server that takes a second creation of one name."""
        if self._probed:
            return
        key, file = self.place.key(PROBE), self.place.file(PROBE)
        # The probe stays: if it is refused the first time, that is the answer already.
        for _ in range(2):
            if not self._create(key, b"the second creation of this name must be refused\n", file):
                self._probed = True
                return
        raise StorageError(
            f"{self.place} ignores the condition of a write (If-None-Match: *): two writers would both believe that "
            "they committed; use a server that keeps it (Amazon S3, Google, Azure, MinIO, SeaweedFS do)",
            file=file,
        )

    def _create(self, key: str, data: Buffer, file: str) -> bool:
        token = secrets.token_hex(16)
        for _ in range(_CONFLICTS):
            try:
                obstore.put(self._once, key, data, mode="create", use_multipart=False, attributes=_attributes(token))
                return True
            except exceptions.AlreadyExistsError:
                if self._fetch.size(key, file) is not None:
                    return False
                self._clock.sleep(_CONFLICT_S)  # another write is under way; it may yet fail
            except REFUSALS as error:
                told = explain(error, file, "write")
                if not isinstance(told, TryAgain):
                    raise told from None
                owner = self._owner(key, file)
                if owner == token:
                    return True
                if owner:
                    return False
                raise told from None  # not there, or nobody's: call again and compare
        raise TryAgain(f"cannot write {file}: others kept writing it and none came through; try again", file=file)

    def _upload(self, name: str, first: bytearray, parts: Parts, file: str) -> bool:
        """Write a blob of more than one part; False if the name is taken."""
        if self.size(name) is not None:
            return False
        key, token, part_bytes = self.place.key(name), secrets.token_hex(16), self.place.part_bytes

        def bodies() -> Iterator[bytearray]:
            part = first
            for count in itertools.count(1):
                if count > _PARTS:
                    raise CallError(
                        f"{file} has more than {_PARTS} parts of {part_bytes >> 20} MiB; write larger ones: "
                        "?part_mib= in the URL",
                        file=file,
                    )
                if parts.at_end and self.size(name) is not None:
                    raise taken(name, file=file)
                yield part
                if parts.at_end:
                    return
                part = parts.next_part()

        error = upload(self._client, key, bodies(), part_bytes=part_bytes, attributes=_attributes(token))
        if isinstance(error, REFUSALS):
            # The completion may have come through though its response was lost, or its repetition was refused.
            if parts.at_end and self._owner(key, file) == token:
                return True
            raise explain(error, file, "write")
        if error is not None:
            raise error
        return True

    def _owner(self, key: str, file: str) -> str | None:
        """The token of who wrote ``key``; empty if it carries none, None if it is not there."""
        try:
            found: Any = obstore.get(self._client, key, options={"head": True}).attributes
        except FileNotFoundError:
            return None
        except REFUSALS as error:
            raise explain(error, file, "look at") from None
        return str(found.get(_TOKEN, ""))


def _attributes(token: str) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", _TOKEN: token}
