"""AWS Signature Version 4 for requests without a body, as Amazon documents it ("Authenticating Requests").

Pure: keys, request and time in, headers out. obstore signs everything else; it has no listing of multipart uploads,
which is why this exists.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

from perdure.adapters.objectstore.credentials import Keys

__all__ = ["signed_headers"]

_EMPTY = hashlib.sha256(b"").hexdigest()


def signed_headers(method: str, url: str, *, region: str, keys: Keys, when: datetime) -> Mapping[str, str]:
    """The headers to send with ``method url``, host included. The path of ``url`` is encoded already."""
    parts = urlsplit(url)
    stamp = when.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if keys.session_token:
        headers["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(headers))
    query = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in parse_qsl(parts.query, True))
    canonical = "\n".join(
        [
            method,
            parts.path or "/",
            "&".join(f"{k}={v}" for k, v in query),
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
            "",
            names,
            _EMPTY,
        ]
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_access_key}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return headers
