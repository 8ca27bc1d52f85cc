"""What the URL of an object store means: a bucket, a prefix in it, options; and the clients that speak to it.

| scheme | place | options besides ``part_mib``, ``allow_http``, ``anonymous`` and ``endpoint`` |
|---|---|---|
| s3, s3a | bucket/prefix | region, profile, virtual_hosted |
| gs, gcs | bucket/prefix | |
| az, azure | container/prefix | account, emulator |
| abfs, abfss | container@account.dfs.core.windows.net/prefix, container/prefix | account |

Whatever is not in the URL comes from the environment variables of the libraries (AWS_*, GOOGLE_*, AZURE_*).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, S3Store
from obstore.store import ObjectStore as Client

from perdure.adapters.objectstore.credentials import Profile, find_profile
from perdure.adapters.objectstore.refusals import REFUSALS
from perdure.errors import CallError
from perdure.store.url import StoreUrl

__all__ = ["Place"]

_KINDS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "azure": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_COMMON = {"part_mib", "allow_http", "anonymous", "endpoint"}
_OPTIONS = {"s3": {"region", "profile", "virtual_hosted"}, "gcs": set[str](), "azure": {"account", "emulator"}}
_BUCKET = re.compile(r"\A[A-Za-z0-9$][A-Za-z0-9._-]{0,221}\Z")
_STEP = re.compile(r"\A(?!\.\.?\Z)[A-Za-z0-9._=+,@-]{1,200}\Z")
_HOSTED = re.compile(r"\A([^@]+)@([a-z0-9]+)\.(?:dfs|blob)\.(?:core\.windows\.net|fabric\.microsoft\.com)\Z")
_REGION = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")
_ACCOUNT = re.compile(r"\A[a-z0-9][a-z0-9-]{0,62}\Z")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # what obstore reads of the environment
_OPENS_WITH = {
    "s3": "correct the options endpoint and region, or the variables AWS_*",
    "gcs": "correct the option endpoint, or the variables GOOGLE_*",
    "azure": "give the option account or set AZURE_STORAGE_ACCOUNT_NAME, and correct the other variables AZURE_*",
}
_MIB = 1 << 20
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
# A request as a whole may take as long as its part needs on a slow link; a connection that says nothing may not.
_CLIENT = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=10), "read_timeout": "60s"}


@dataclass(frozen=True, slots=True)
class Place:
    """A checked URL. ``str`` of it is the URL, which holds no secret."""

    kind: str
    bucket: str
    prefix: str
    url: str
    part_bytes: int
    options: Mapping[str, str] = field(repr=False)
    profile: Profile | None = None
    allow_http: bool = False

    @classmethod
    def of(cls, url: StoreUrl, *, variables: Mapping[str, str]) -> Place:
        """Check ``url``; raise `CallError` with the reason. ``variables`` are those of the environment about AWS.

        What is refused is shown no further than its bucket: a link that was mangled may hold a secret anywhere.
        """
        shown = url.shown
        kind = _KINDS[url.scheme]
        options = dict(url.options)
        bucket, _, prefix = url.location.partition("/")
        hosted = _HOSTED.match(bucket) if kind == "azure" else None
        if hosted is not None:
            bucket = hosted[1]
            options.setdefault("account", hosted[2])
        if not _BUCKET.match(bucket):
            raise CallError(f"{shown}: what follows {url.scheme}:// is no name of a bucket or container", url=shown)
        if prefix and not all(_STEP.match(step) for step in prefix.split("/")):
            raise CallError(
                f"the URL at {shown}: between its slashes a place has letters, digits and any of . _ = + , @ - alone",
                url=shown,
            )
        known = _COMMON | _OPTIONS[kind]
        if not known.issuperset(options):
            raise CallError(f"{shown}: an option is none of {', '.join(sorted(known))}; correct its name", url=shown)
        for name in ("allow_http", "anonymous", "virtual_hosted", "emulator"):
            if options.get(name, "true") not in _SWITCH:
                raise CallError(f"{shown}: {name} is true or false", url=shown)
        part = options.get("part_mib", "16")
        if not part.isdecimal() or not 5 <= int(part) <= 1024:
            raise CallError(
                f"{shown}: part_mib is a number from 5 to 1024, the MiB of one part of an upload", url=shown
            )
        if not _REGION.match(options.get("region", "x")):
            raise CallError(f"{shown}: the option region is one word, such as eu-west-1; correct it", url=shown)
        if not _ACCOUNT.match(options.get("account", "x")):
            raise CallError(f"{shown}: the option account is small letters and digits; correct it", url=shown)
        profile = (
            find_profile(options.get("profile"), variables) if kind == "s3" and not on(options, "anonymous") else None
        )
        asked = "the option endpoint" if "endpoint" in options else "the endpoint of the profile or the environment"
        endpoint = options.get("endpoint")
        if kind == "s3" and endpoint is None:
            endpoint = (profile and profile.endpoint) or next(filter(None, map(variables.get, _ENDPOINTS)), None)
        allow_http = on(options, "allow_http")
        if endpoint is not None:
            allow_http = _check_endpoint(endpoint, options, f"{shown}: {asked}") or allow_http
        return cls(kind, bucket, prefix, str(url), int(part) * _MIB, options, profile, allow_http)

    def __str__(self) -> str:
        return self.url

    def key(self, name: str) -> str:
        """The key of the blob ``name``."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def file(self, name: str) -> str:
        """What messages call the blob ``name``."""
        return f"{self.url.partition('?')[0]}/{name}"

    def connect(self, *, retries: int) -> Client:
        """A client that repeats a request that failed ``retries`` times at most. Nothing is sent yet."""
        more: dict[str, Any] = {
            "client_options": {**_CLIENT, "allow_http": self.allow_http},
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=100)},
        }
        if on(self.options, "anonymous"):
            more["skip_signature"] = True
        try:
            if self.kind == "s3":
                return S3Store(self.bucket, **more, **self._s3())
            if self.kind == "gcs":
                if "endpoint" in self.options:
                    more["base_url"] = self.options["endpoint"]
                return GCSStore(self.bucket, **more)
            return AzureStore(self.bucket, **more, **self._azure())
        except REFUSALS:  # whose text may hold what a variable holds
            raise CallError(f"cannot open {self.url}: {_OPENS_WITH[self.kind]}", url=self.url) from None

    def _azure(self) -> dict[str, Any]:
        keys = (("endpoint", "endpoint"), ("account", "account_name"))
        more: dict[str, Any] = {key: self.options[name] for name, key in keys if name in self.options}
        if on(self.options, "emulator"):
            more["use_emulator"] = True
        return more

    def _s3(self) -> dict[str, Any]:
        more: dict[str, Any] = {name: self.options[name] for name in ("endpoint", "region") if name in self.options}
        if "virtual_hosted" in self.options:
            more["virtual_hosted_style_request"] = on(self.options, "virtual_hosted")
        profile = self.profile
        if profile is not None:
            if profile.keys is not None:
                more["credential_provider"] = profile.keys.provide
            elif profile.provider is not None:
                more["credential_provider"] = profile.provider
            if profile.region:
                more.setdefault("region", profile.region)
            if profile.endpoint:
                more.setdefault("endpoint", profile.endpoint)
        return more


def _check_endpoint(endpoint: str, options: Mapping[str, str], what: str) -> bool:
    """Whether ``endpoint`` is spoken to without TLS; raises `CallError` if it may not be, or is no URL of a server."""
    try:
        parts = urlsplit(endpoint)
        host, scheme, _ = parts.hostname, parts.scheme, parts.port
    except ValueError:
        host, scheme = None, ""
    if not host or scheme not in ("http", "https") or any(not each.isprintable() or each == " " for each in endpoint):
        raise CallError(f"{what} is no URL of a server; write it as https://host:9000")
    if scheme == "https":
        return False
    # To this machine itself nobody on the way reads along.
    if not on(options, "allow_http") and ("allow_http" in options or not _is_loopback(host)):
        raise CallError(
            f"{what} is an http:// URL, over which everybody on the way reads the data: use https://, or permit it "
            "with allow_http=true in the URL of the run"
        )
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def on(options: Mapping[str, str], name: str) -> bool:
    """Whether the switch ``name`` is set."""
    return _SWITCH[options.get(name, "false")]
