"""One real server for all tests of a session, and a fresh place in it for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from .seaweed import Seaweed

_PLACES = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    pytest.importorskip("obstore", reason="NOT TESTED: object stores; pip install 'perdure[objectstore]'")
    with pytest.MonkeyPatch.context() as patch:
        credentials(patch)
        seaweed = Seaweed(tmp_path_factory.mktemp("seaweed"))
        try:
            seaweed.start()
            yield seaweed
        finally:
            seaweed.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch)


def credentials(patch: pytest.MonkeyPatch) -> None:
    """The environment of a user of this server; nothing of the machine's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        patch.delenv(name, raising=False)
    for name, value in Seaweed.environment().items():
        patch.setenv(name, value)


@pytest.fixture
def place(server: Seaweed) -> str:
    """The URL of a run that does not exist yet."""
    return server.url(f"bucket/tests/run-{next(_PLACES)}")
