"""What to do when an object store refuses: an exception of obstore in, an error of the tree with a sentence out.

obstore tells most failures in one exception with a long text, so the text is read: status, code, message. Nothing else
of it is passed on, for it may hold what must not be shown (keys and signatures in URLs); nor is the exception chained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from perdure.errors import CallError, DeadlineExceeded, LinkLost, PerdureError, StorageError, StorageFull, TryAgain

__all__ = ["REFUSALS", "explain", "explained", "starts_behind_end"]

# What obstore raises for a request that failed; a blob that is missing is a FileNotFoundError.
REFUSALS = (exceptions.BaseError, OSError, ValueError)

_STATUS = re.compile(r"(?:status code:|\bstatus:) (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>|\"code\": ?\"?([A-Za-z0-9]{1,80})")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,300})")
_KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Request)\b")
_FULL = re.compile(
    r"Quota|InsufficientStorage|StorageFull|DiskFull|no free volumes|[Nn]o space left|no writable volumes"
)
_BUSY = re.compile(r"SlowDown|Throttl|TooManyRequests|ServerBusy|RequestLimitExceeded|rateLimitExceeded")
_MACHINE = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google|CredentialsNotFound|NoCredential")
_KEYS = {
    "ExpiredToken": "the credentials have expired; renew them",
    "ExpiredTokenException": "the credentials have expired; renew them",
    "TokenRefreshRequired": "the credentials have expired; renew them",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it",
    "SignatureDoesNotMatch": "the secret key is wrong, or a proxy changes requests; check the credentials",
    "InvalidAccessKeyId": "the store does not know this key; check the credentials",
}
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")


def starts_behind_end(error: BaseException) -> bool:
    """Whether ``error`` says that a range begins where the blob has no byte, told by the server or by obstore."""
    return _status_of(error) == 416 or "Wanted range starting at" in str(error)


def explain(error: BaseException, file: str, doing: str) -> PerdureError:
    """Turn ``error``, met while ``doing`` something with ``file``, into the error that says what to do."""
    text = str(error)
    status = _status_of(error)
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    said = _MESSAGE.search(text)
    why = f"{code or 'the request failed'}{f' ({status})' if status else ''}{f': {said[1]}' if said else ''}"
    facts = {"file": file, "code": code, "status": status}
    if isinstance(error, exceptions.UnknownConfigurationKeyError | exceptions.InvalidPathError):
        return CallError(f"cannot {doing} {file}: {type(error).__name__}; correct the URL", **facts)
    if _FULL.search(text) or status == 507:
        return StorageFull(f"no room or quota is left: cannot {doing} {file} ({why}); make room or prune", **facts)
    if _MACHINE.search(text):
        return StorageError(
            f"cannot {doing} {file}: no credentials were found in the environment or a profile, and the machine gives "
            "none; set them (docs/stores.md)",
            **facts,
        )
    if _BUSY.search(text) or status in (429, 503):
        return TryAgain(f"cannot {doing} {file} just now: the store asks to slow down, {why}; try again later", **facts)
    if code in _REGION or status == 301:
        return StorageError(f"cannot {doing} {file}: {why}; name the bucket's region in the URL: ?region=...", **facts)
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or status in (401, 403):
        remedy = _KEYS.get(code, "give these credentials the permission, or use others")
        return StorageError(f"cannot {doing} {file}: {why}; {remedy}", **facts)
    if isinstance(error, FileNotFoundError) or status == 404:
        return StorageError(
            f"cannot {doing} {file}: its bucket or container is not there ({why}); make it, or correct the URL", **facts
        )
    kind = _KIND.search(text)
    if kind and kind[1] == "Timeout":
        return DeadlineExceeded(f"cannot {doing} {file}: the store did not answer in time; try again later", **facts)
    if kind or "error sending request" in text or "error decoding response" in text:
        if "certificate" in text:
            return StorageError(f"cannot {doing} {file}: the store's certificate is not trusted; install it", **facts)
        return LinkLost(f"cannot {doing} {file}: no connection to the store; check network and endpoint", **facts)
    if status is not None and status >= 500:
        return TryAgain(f"cannot {doing} {file} just now: {why}; try again later", **facts)
    return StorageError(f"cannot {doing} {file}: {why} [{type(error).__name__}]; see to the store", **facts)


def _status_of(error: BaseException) -> int | None:
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


@contextmanager
def explained(file: str, doing: str) -> Iterator[None]:
    """Let a failed request of the block leave as `explain` tells it; errors of the tree pass."""
    try:
        yield
    except PerdureError:
        raise
    except REFUSALS as error:
        raise explain(error, file, doing) from None
