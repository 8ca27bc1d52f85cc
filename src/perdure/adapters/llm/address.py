"""Where an endpoint is: checked once, so that a key never goes over the wire in the clear or to somebody else."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from perdure.errors import CallError

__all__ = ["Address", "address_of"]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, the path that calls begin with, and the key, which is in no ``repr``."""

    host: str
    port: int
    tls: bool
    path: str
    key: str | None = field(repr=False)

    @property
    def shown(self) -> str:
        """The host and port, for people to read."""
        return f"{self.host}:{self.port}"


def address_of(base_url: str, *, key: str | None, insecure: bool) -> Address:
    """Take a base URL such as ``https://host/v1`` apart.

    Raises `CallError` for what is no such URL, for one that holds a password, for plain http to another machine
    unless ``insecure`` says that the network is to be trusted, and for a key that cannot be sent.

    >>> address_of("http://127.0.0.1:8080/v1", key="secret", insecure=False)
    Address(host='127.0.0.1', port=8080, tls=False, path='/v1')
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or any(ord(each) <= 32 or ord(each) > 126 for each in base_url)
    ):
        raise CallError(
            "the base URL of an endpoint is http://host... or https://host..., as https://localhost:8080/v1"
        )
    if parts.username is not None or parts.password is not None:
        raise CallError("the base URL must hold no name or password; give the key as key=")
    if parts.query or parts.fragment:
        raise CallError("the base URL must end with its path, as .../v1, without ? and #")
    tls = parts.scheme == "https"
    if not tls and not insecure and not _is_loopback(host):
        raise CallError(
            f"http to {host} would send the memory and the key in the clear; use https, or insecure=True on a network"
            " that is to be trusted"
        )
    if key is not None and (not key or any(not 32 < ord(each) < 127 for each in key)):
        raise CallError("the key must be of letters, digits and signs of ASCII, without spaces and line ends")
    return Address(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"), key)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
