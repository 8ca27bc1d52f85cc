"""AWS keys, found along the usual chain: the environment, then a profile, then the machine's own role.

obstore walks most of the chain itself (environment, web identity, container, instance) and renews what expires. What
it does not know are profiles; and it does not hand its keys out, which the listing of cut uploads needs. So both are
found here: static keys of a profile by reading the two files, everything cleverer (roles, single sign-on, programs)
through boto3 if that is installed.

Keys have no text: neither `repr` nor an error shows more of them than that they are there.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import CallError, StorageError

__all__ = ["Keys", "Profile", "env_keys", "find_profile", "rest_keys"]

# What obstore looks at by itself, before any profile (as AWS's own libraries do).
_OWN_CHAIN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CLEVER = ("role_arn", "sso_session", "sso_start_url", "credential_process", "credential_source", "login_session")


@dataclass(frozen=True, slots=True)
class Keys:
    """An access key, as long as it is valid."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def provide(self) -> dict[str, str | None]:
        """What obstore asks a provider for: all of it, so that nothing of the environment is mixed in."""
        return {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "token": self.session_token,
            "expires_at": None,
        }


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile: its static ``keys`` or a ``provider`` that obstore asks whenever it needs some."""

    name: str
    keys: Keys | None = None
    provider: Any = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None


def env_keys(variables: Mapping[str, str]) -> Keys | None:
    """The keys that stand in the environment."""
    if "AWS_ACCESS_KEY_ID" in variables and "AWS_SECRET_ACCESS_KEY" in variables:
        return Keys(
            variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"], variables.get("AWS_SESSION_TOKEN")
        )
    return None


def find_profile(asked: str | None, variables: Mapping[str, str]) -> Profile | None:
    """The profile to use; None where the rest of the chain is to be asked.

    A profile named in the URL goes before the environment's keys, which go before AWS_PROFILE and ``default``.
    Raises `CallError` for a named profile that is not there, or that needs boto3.
    """
    if asked is None and any(name in variables for name in _OWN_CHAIN):
        return None
    named = asked or variables.get("AWS_PROFILE")
    name = named or "default"
    home = os.path.join(variables.get("HOME", "/nonexistent"), ".aws")
    keys_file = variables.get("AWS_SHARED_CREDENTIALS_FILE", os.path.join(home, "credentials"))
    config_file = variables.get("AWS_CONFIG_FILE", os.path.join(home, "config"))
    facts = _section(config_file, name if name == "default" else f"profile {name}") | _section(keys_file, name)
    if not facts:
        if named is None:
            return None
        raise CallError(f"there is no AWS profile {name!r} in {keys_file} or {config_file}; correct its name")
    region, endpoint = facts.get("region"), facts.get("endpoint_url")
    if "aws_access_key_id" in facts and "aws_secret_access_key" in facts:
        keys = Keys(facts["aws_access_key_id"], facts["aws_secret_access_key"], facts.get("aws_session_token"))
        return Profile(name, keys=keys, region=region, endpoint=endpoint)
    if any(word in facts for word in _CLEVER):
        return Profile(name, provider=_boto3_provider(name), region=region, endpoint=endpoint)
    return Profile(name, region=region, endpoint=endpoint)  # settings alone: the rest of the chain has the keys


def rest_keys(profile: Profile | None, variables: Mapping[str, str]) -> Keys:
    """The keys for a request that this process signs itself.

    Raises `StorageError` where only obstore can get them (a machine's role) and boto3 is not there to ask.
    """
    found = (profile.keys if profile else None) or (None if profile else env_keys(variables))
    if found is not None:
        return found
    try:
        import boto3.session
    except ModuleNotFoundError:
        raise StorageError(
            "cut uploads are listed with a request of our own, whose keys a machine's role gives through boto3 only: "
            "pip install boto3, or let a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) remove them"
        ) from None
    credentials = boto3.session.Session(profile_name=profile.name if profile else None).get_credentials()
    if credentials is None:
        raise StorageError("no AWS credentials were found; set them in the environment or a profile")
    frozen = credentials.get_frozen_credentials()
    return Keys(frozen.access_key, frozen.secret_key, frozen.token)


def _boto3_provider(name: str) -> Callable[[], Any]:
    try:
        from boto3.session import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError:
        raise CallError(
            f"the AWS profile {name!r} has no keys of its own but a role, single sign-on or a program: "
            "pip install boto3, which can follow it"
        ) from None
    provider: Callable[[], Any] = Boto3CredentialProvider(Session(profile_name=name))
    return provider


def _section(path: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser's own message repeats the line, which may be a key.
        raise CallError(
            f"{path} cannot be read as a file of AWS profiles ({type(error).__name__}); correct it"
        ) from None
    return dict(parser.items(name)) if parser.has_section(name) else {}
