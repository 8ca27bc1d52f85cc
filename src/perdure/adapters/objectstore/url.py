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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from obstore.store import AzureStore, GCSStore, S3Store
from obstore.store import ObjectStore as Client

from perdure.adapters.objectstore.credentials import Profile, find_profile
from perdure.adapters.objectstore.refusals import explained
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

    @classmethod
    def of(cls, url: StoreUrl, *, variables: Mapping[str, str]) -> Place:
        """Check ``url``; raise `CallError` with the reason. ``variables`` are those of the environment about AWS."""
        kind = _KINDS[url.scheme]
        options = dict(url.options)
        bucket, _, prefix = url.location.partition("/")
        hosted = _HOSTED.match(bucket) if kind == "azure" else None
        if hosted is not None:
            bucket = hosted[1]
            options.setdefault("account", hosted[2])
        if not _BUCKET.match(bucket):
            raise CallError(f"{url}: {bucket!r} is no name of a bucket or container", url=str(url))
        if prefix and not all(_STEP.match(step) for step in prefix.split("/")):
            raise CallError(
                f"{url}: between its slashes a place has letters, digits and any of . _ = + , @ - alone", url=str(url)
            )
        known = _COMMON | _OPTIONS[kind]
        for name in options:
            if name not in known:
                raise CallError(f"{url}: no option {name!r}; there are {', '.join(sorted(known))}", url=str(url))
        for name in ("allow_http", "anonymous", "virtual_hosted", "emulator"):
            if options.get(name, "true") not in _SWITCH:
                raise CallError(f"{url}: {name} is true or false", url=str(url))
        part = options.get("part_mib", "16")
        if not part.isdecimal() or not 5 <= int(part) <= 1024:
            raise CallError(
                f"{url}: part_mib is a number from 5 to 1024, the MiB of one part of an upload", url=str(url)
            )
        profile = (
            find_profile(options.get("profile"), variables) if kind == "s3" and not on(options, "anonymous") else None
        )
        return cls(kind, bucket, prefix, str(url), int(part) * _MIB, options, profile)

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
            "client_options": {**_CLIENT, "allow_http": on(self.options, "allow_http")},
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=100)},
        }
        if on(self.options, "anonymous"):
            more["skip_signature"] = True
        with explained(self.url, "open"):
            if self.kind == "s3":
                return S3Store(self.bucket, **more, **self._s3())
            if self.kind == "gcs":
                if "endpoint" in self.options:
                    more["base_url"] = self.options["endpoint"]
                return GCSStore(self.bucket, **more)
            for name, key in (("endpoint", "endpoint"), ("account", "account_name")):
                if name in self.options:
                    more[key] = self.options[name]
            if on(self.options, "emulator"):
                more["use_emulator"] = True
            return AzureStore(self.bucket, **more)

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


def on(options: Mapping[str, str], name: str) -> bool:
    """Whether the switch ``name`` is set."""
    return _SWITCH[options.get(name, "false")]
