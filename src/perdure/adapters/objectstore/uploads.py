"""Multipart uploads that nobody will complete: found and aborted, in this run's prefix alone.

obstore lists blobs, not uploads; so this speaks three requests of the S3 protocol itself. Age is by the server's clock,
both the time of the upload and "now".
"""

from __future__ import annotations

import email.utils
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

import obstore
from obstore.store import ObjectStore as Client
from obstore.store import S3Store

from perdure.adapters.objectstore.credentials import Keys, rest_keys
from perdure.adapters.objectstore.refusals import explain, explained
from perdure.adapters.objectstore.signing import signed_headers
from perdure.adapters.objectstore.url import Place, on
from perdure.errors import CallError, FormatRefused, LinkLost
from perdure.process.environ import aws_variables
from perdure.store.api import is_name

__all__ = ["DAY_S", "Upload", "Uploads", "stale"]

DAY_S = 86_400.0
MIN_AGE_S = DAY_S
_TIMEOUT_S = 60.0
_ANSWER_BYTES = 16 << 20
_PAGES = 1000


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun: the blob it would have become, its id, and when."""

    name: str
    id: str
    begun: datetime


def stale(uploads: Sequence[Upload], *, now: datetime, older_than_s: float) -> list[Upload]:
    """Those of ``uploads`` that were begun longer ago, the oldest first."""
    limit = now - timedelta(seconds=older_than_s)
    return sorted((each for each in uploads if each.begun < limit), key=lambda each: (each.begun, each.name))


@dataclass(frozen=True, slots=True)
class Uploads:
    """The uploads of one place on an S3 server: ``bucket`` is the bucket's URL."""

    place: Place
    bucket: str
    region: str
    keys: Keys

    @classmethod
    def of(cls, place: Place, client: Client) -> Uploads:
        """Find out how ``client`` speaks to its bucket. Raises `CallError` where uploads cannot be listed."""
        if place.kind == "azure":
            raise CallError(f"{place}: Azure lists no cut uploads and forgets their blocks after a week by itself")
        if place.kind == "gcs" or not isinstance(client, S3Store):
            raise CallError(
                f"{place}: cut uploads are not listed on Google Cloud Storage; give the bucket a lifecycle rule "
                "AbortIncompleteMultipartUpload"
            )
        if on(place.options, "anonymous"):
            raise CallError(f"{place}: cut uploads cannot be listed without credentials")
        keys = rest_keys(place.profile, aws_variables())
        with explained(str(place), "sign for"):
            signed = urlsplit(obstore.sign(client, "GET", "x", timedelta(minutes=1)))
        region = parse_qs(signed.query)["X-Amz-Credential"][0].split("/")[2]
        return cls(place, f"{signed.scheme}://{signed.netloc}{signed.path.removesuffix('/x')}", region, keys)

    def abandoned(self, *, older_than_s: float) -> list[Upload]:
        """The uploads in the place's prefix that were begun so long ago."""
        if older_than_s < MIN_AGE_S:
            raise CallError("uploads younger than a day may belong to a living writer; give at least 86400 s")
        found, now = self._list()
        return stale(found, now=now, older_than_s=older_than_s)

    def abort(self, upload: Upload) -> None:
        """Make the server forget ``upload``; nothing happens if it is gone."""
        key = quote(self.place.key(upload.name), safe="-_.~/")
        self._send("DELETE", f"{self.bucket}/{key}?uploadId={quote(upload.id, safe='')}", gone_is_fine=True)

    def _list(self) -> tuple[list[Upload], datetime]:
        prefix = f"{self.place.prefix}/" if self.place.prefix else ""
        found: list[Upload] = []
        after = ""
        for _ in range(_PAGES):
            body, now = self._send("GET", f"{self.bucket}?prefix={quote(prefix, safe='')}{after}&uploads=")
            page = _parse(body, str(self.place))
            for element in page.iterfind("Upload"):
                key, begun = element.findtext("Key", ""), element.findtext("Initiated", "")
                name = key.removeprefix(prefix)
                # A server may list more than was asked for; and what has no name of a blob is not perdure's.
                if key.startswith(prefix) and is_name(name):
                    found.append(Upload(name, element.findtext("UploadId", ""), datetime.fromisoformat(begun)))
            if page.findtext("IsTruncated", "false") != "true":
                return [replace(each, begun=each.begun.astimezone(UTC)) for each in found], now
            marks = (page.findtext("NextKeyMarker", ""), page.findtext("NextUploadIdMarker", ""))
            after = f"&key-marker={quote(marks[0], safe='')}&upload-id-marker={quote(marks[1], safe='')}"
        raise LinkLost(f"the list of uploads of {self.place} does not end; try again")

    def _send(self, method: str, url: str, *, gone_is_fine: bool = False) -> tuple[bytes, datetime]:
        """The body of the answer and the server's time."""
        headers = signed_headers(method, url, region=self.region, keys=self.keys, when=datetime.now(UTC))
        request = urllib.request.Request(url, method=method, headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                body, date = answer.read(_ANSWER_BYTES), answer.headers.get("date")
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and gone_is_fine:
                    return b"", datetime.now(UTC)
                text = error.read(_ANSWER_BYTES).decode(errors="replace")
            raise explain(
                OSError(f"status code: {error.code} {text}"), str(self.place), "list the uploads of"
            ) from None
        except OSError as error:
            raise LinkLost(
                f"cannot list the uploads of {self.place}: no connection to the store ({type(error).__name__}); "
                "check network and endpoint"
            ) from None
        return body, email.utils.parsedate_to_datetime(date) if date else datetime.now(UTC)


def _parse(body: bytes, place: str) -> ElementTree.Element:
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:  # a bomb, or not S3
        raise FormatRefused(f"{place} answers with something that is no list of uploads; check the endpoint")
    try:
        page = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise FormatRefused(f"{place} answers with something that is no list of uploads; check the endpoint") from None
    for element in page.iter():
        element.tag = element.tag.rpartition("}")[2]
    return page
