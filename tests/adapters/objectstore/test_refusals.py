"""What an object store refuses, loses or forgets, and what the caller is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="NOT TESTED: object stores; pip install 'perdure[objectstore]'")

from perdure.adapters.objectstore import ObjectStore
from perdure.adapters.objectstore.store import PROBE
from perdure.errors import BlobMissing, CallError, LinkLost, PerdureError, StorageError, StorageFull, TryAgain
from perdure.store import Run, open_store

from .rude import Proxy, Script, ScriptedServer
from .seaweed import SECRET, Seaweed


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def store(script: Script) -> Iterator[ObjectStore]:
    server = ScriptedServer(script)
    yield ObjectStore(f"s3://bucket/run?endpoint={server.endpoint}&allow_http=true&region=x")
    server.close()


def test_a_server_that_ignores_conditions_is_found_out_before_anything_is_written(
    script: Script, store: ObjectStore
) -> None:
    script.keeps_conditions = False
    for write in (lambda: store.create("slots/1", b"1"), lambda: store.put("packs/1", [b"1"])):
        with pytest.raises(StorageError, match="If-None-Match"):
            write()
    assert set(script.blobs) == {f"/bucket/run/{PROBE}"}


def test_the_probe_costs_two_requests_once_and_no_name(script: Script, store: ObjectStore) -> None:
    assert store.create("slots/1", b"1")
    assert store.create("slots/2", b"2")
    assert [line for line in script.asked if PROBE in line and line.startswith("PUT")] == [
        f"PUT /bucket/run/{PROBE}"
    ] * 2


def test_a_conflict_is_not_taken_for_a_no(script: Script, store: ObjectStore) -> None:
    assert store.create("a", b"1")
    script.answers = [(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")]
    assert store.create("b", b"1") is True


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StorageError),
        (403, "SignatureDoesNotMatch", StorageError),
        (400, "ExpiredToken", StorageError),
        (403, "RequestTimeTooSkewed", StorageError),
        (404, "NoSuchBucket", StorageError),
        (301, "PermanentRedirect", StorageError),
        (403, "QuotaExceeded", StorageFull),
        (507, "InsufficientStorage", StorageFull),
        (500, "InternalError", TryAgain),
        (503, "SlowDown", TryAgain),
        (429, "TooManyRequests", TryAgain),
    ],
)
def test_every_refusal_says_what_to_do(
    script: Script, store: ObjectStore, status: int, code: str, kind: type[PerdureError]
) -> None:
    assert store.create("a", b"1")
    text = f"<Error><Code>{code}</Code><Message>sorry</Message><StringToSign>{SECRET}</StringToSign></Error>"
    script.answers = [(status, text.encode())]
    with pytest.raises(kind) as caught:
        store.create("b", b"1")
    assert type(caught.value) is kind
    assert ";" in str(caught.value)
    assert "s3://bucket/run/b" in str(caught.value)
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)
    assert store.create("b", b"1")  # what was refused was not written


def test_a_server_that_is_not_there_is_a_lost_link() -> None:
    store = ObjectStore("s3://bucket/run?endpoint=http://127.0.0.1:1&allow_http=true&region=x")
    with pytest.raises(LinkLost, match="endpoint"):
        store.create("a", b"1")


def test_no_text_of_a_store_shows_a_secret(place: str) -> None:
    store = ObjectStore(place)
    assert SECRET not in f"{store!r} {store.place!r} {store.place} {store.place.options}"


def test_a_wrong_secret_is_refused_without_repeating_it(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(StorageError, match="secret key is wrong") as caught:
        ObjectStore(place).create("a", b"1")
    assert "hunter2" not in f"{caught.value} {caught.value.facts} {caught.value.__context__}"


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://-bucket/a",
        "s3://bucket/a?acount=x",
        "s3://bucket/a?part_mib=4",
        "s3://bucket/a?part_mib=x",
        "s3://bucket/a?allow_http=yes",
        "s3://bucket/a?profile=nobody",
        "s3://bucket/a?part_mib",
        "gs://bucket/a?region=x",
        "az://container/a",
    ],
)
def test_a_place_that_makes_no_sense_is_refused_before_anything_is_sent(url: str, tmp_path: Path) -> None:
    with pytest.raises((CallError, StorageError)):
        ObjectStore(url)


@pytest.mark.parametrize("endpoint", ["http://10.1.2.3:9000", "http://minio:9000", "http://localhost.example.com"])
def test_http_to_another_machine_is_refused_naming_the_option(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CallError, match=r"option endpoint.*allow_http=true"):
        ObjectStore(f"s3://bucket/run?endpoint={endpoint}")
    ObjectStore(f"s3://bucket/run?endpoint={endpoint}&allow_http=true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(CallError, match=r"environment.*allow_http=true"):
        ObjectStore("s3://bucket/run")
    ObjectStore("s3://bucket/run?endpoint=https://minio:9000")
    (tmp_path / "config").write_text(f"[profile x]\nendpoint_url = {endpoint}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(CallError, match=r"profile.*allow_http=true"):
        ObjectStore("s3://bucket/run?profile=x")


def test_http_to_this_machine_needs_no_option_and_may_be_forbidden(script: Script) -> None:
    server = ScriptedServer(script)
    try:
        port = server.endpoint.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost"):
            store = ObjectStore(f"s3://bucket/run?endpoint=http://{host}:{port}&region=x")
            assert store.create(f"on-{host}", b"1") is True
        assert ObjectStore("s3://bucket/run?endpoint=http://[::1]:1").place.allow_http
        with pytest.raises(CallError, match="allow_http"):
            ObjectStore(f"s3://bucket/run?endpoint={server.endpoint}&allow_http=false")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("s3://bucket/a?region=us-east-1?endpoint=https://host", "region"),
        ("s3://bucket/a?region=us east 1", "region"),
        ("s3://bucket/a?region=", "region"),
        ("s3://bucket/a?endpoint=minio:9000", "endpoint"),
        ("s3://bucket/a?endpoint=https://host:99999", "endpoint"),
        ("s3://bucket/a?endpoint=ftp://host", "endpoint"),
        ("gs://bucket/a?endpoint=x", "endpoint"),
        ("az://container/a?account=A b", "account"),
        ("az://container/a", "account"),
    ],
)
def test_a_mangled_option_is_named(url: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(CallError, match=f"option {named}"):
        ObjectStore(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/AWSAccessKeyId=AKIA&Signature=hunter2/r",
        "s3://bucket/a?hunter2",
        "s3://bucket/a?region=us?hunter2",
        "s3://bucket/a?endpoint=hunter2",
        "s3://bucket/hunter2 /a?part_mib=1",
        "s3://k=1&hunter2/a",
        "az://container/a?account=hunter2/",
    ],
)
def test_a_refusal_repeats_no_more_than_scheme_and_bucket(url: str) -> None:
    with pytest.raises(CallError) as caught:
        ObjectStore(url)
    assert "hunter2" not in f"{caught.value} {caught.value.facts}"


def test_a_store_is_called_by_its_url_in_sentences(place: str) -> None:
    store = open_store(place)
    assert str(store) == place.partition("?")[0]
    with pytest.raises(BlobMissing, match=f"there is no run in {store}:"):
        Run.open(store, create=False)


def test_a_profile_gives_keys_where_the_environment_has_none(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aws").mkdir()
    wrong = "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n"
    right = "[train]\n" + "".join(f"{name.lower()} = {value}\n" for name, value in Seaweed.environment().items())
    (tmp_path / ".aws" / "credentials").write_text(wrong + right)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in Seaweed.environment():
        monkeypatch.delenv(name)
    with pytest.raises(StorageError):
        ObjectStore(place).create("a", b"1")
    with monkeypatch.context() as other:
        for name in (*Seaweed.environment(), "AWS_SESSION_TOKEN"):
            other.setenv(name, "of somebody else")
        assert ObjectStore(f"{place}&profile=train").create("a", b"1")
    monkeypatch.setenv("AWS_PROFILE", "train")
    store = ObjectStore(place)
    assert bytes(store.read("a")) == b"1"
    assert store.abandoned_uploads() == []
    (tmp_path / ".aws" / "credentials").write_text("[train]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = y\n")
    try:
        import boto3  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(CallError, match="boto3"):
            ObjectStore(place)


def test_a_create_whose_answer_is_lost_knows_its_own_blob(server: Seaweed, place: str) -> None:
    proxy = Proxy(server.endpoint)
    try:
        store = ObjectStore(place.replace(server.endpoint, proxy.endpoint))
        assert store.create("a", b"1")
        proxy.armed = True
        assert store.create("b", b"same") is True
        proxy.armed = True
        assert store.create("b", b"same") is False  # the same bytes, but another's
        assert proxy.lost == 2
        assert bytes(store.read("b")) == b"same"
    finally:
        proxy.close()
