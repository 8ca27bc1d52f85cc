"""Places of runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.store.disk import Disk
from perdure.store.ram import Ram
from perdure.store.url import StoreUrl, open_store


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/run7", "/data/run7"),
        ("/data/run7/", "/data/run7"),
        ("file:///data/run7", "/data/run7"),
        ("file://localhost/data/run7", "/data/run7"),
        ("FILE:///data/run%207", "/data/run 7"),
        ("/data/a:b", "/data/a:b"),
        ("/data/100%25", "/data/100%25"),
        (Path("/data/run7"), "/data/run7"),
    ],
)
def test_paths_and_file_urls_are_folders(text: str | Path, path: str) -> None:
    assert StoreUrl.parse(text) == StoreUrl("file", path)
    store = open_store(text)
    assert isinstance(store, Disk)
    assert store.root == path


def test_a_relative_path_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StoreUrl.parse("run7").location == f"{tmp_path}/run7"


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_what_is_printed_is_read_back(text: str) -> None:
    place = StoreUrl.parse(f"/data/{text}")
    assert StoreUrl.parse(str(place)) == place


def test_ram_of_one_name_is_one_store() -> None:
    store = open_store("ram://test-url")
    assert isinstance(store, Ram)
    assert open_store("ram://test-url") is store
    assert open_store("ram://test-url-2") is not store


@pytest.mark.parametrize("url", ["s3://bucket/run7", "gs://bucket/run7", "az://container/run7"])
def test_an_object_store_names_the_extra_it_needs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)  # as if it were not installed
    for module in [name for name in sys.modules if name.startswith("perdure.adapters.objectstore")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(CallError, match=r"perdure\[objectstore\]"):
        open_store(url)


def test_the_core_imports_no_object_store_until_one_is_opened() -> None:
    code = "import sys, perdure.store; perdure.store.open_store('ram://x'); sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_options_are_kept_apart_from_the_place_in_any_order() -> None:
    place = StoreUrl.parse("s3://bucket/run7/?region=x&endpoint=http%3A%2F%2Fhost%3A9000&allow_http=true")
    assert place.location == "bucket/run7"
    assert place.options == (("allow_http", "true"), ("endpoint", "http://host:9000"), ("region", "x"))
    assert StoreUrl.parse(str(place)) == place
    assert str(StoreUrl.parse("s3://bucket/run7?allow_http=true&region=x&endpoint=http://host:9000")) == str(place)


@given(st.dictionaries(st.sampled_from(["region", "account", "x"]), st.text(max_size=9)))
def test_options_that_are_printed_are_read_back(options: dict[str, str]) -> None:
    place = StoreUrl("s3", "bucket/run", tuple(sorted(options.items())))
    assert StoreUrl.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "s3://user:hunter2@bucket/run7",
        "s3://hunter2@bucket/run7",
        "abfss://container:hunter2@account.dfs.core.windows.net/run",
        "s3://bucket/run7?secret_access_key=hunter2",
        "s3://bucket/run7?AWS_ACCESS_KEY_ID=hunter2",
        "s3://bucket/run7?X-Amz-Signature=hunter2",
        "s3://bucket/run7?session_token=hunter2&region=x",
        "az://container/run7?sas_token=hunter2",
        "az://container/run7?sv=2020&sig=hunter2",
        "gs://bucket/run7?password=hunter2",
        "s3://bucket/run7?endpoint=https://user:hunter2@host",
        "s3://bucket/run7#hunter2",
        "s3://bucket#hunter2",
        "s3://bucket/run7?region=x#hunter2",
        "s3://s3://bucket/hunter2",
        "s3://bucket/run7?Region:hunter2",
        "s3://bucket/run7?token:hunter2",
        "s3://bucket/hunter2\0",
        "s3:/bucket/hunter2",
        "nobody://bucket/hunter2",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(CallError) as caught:
        open_store(text)
    assert "hunter2" not in f"{caught.value} {caught.value.facts}"


def test_an_adapter_is_introduced_by_its_opener() -> None:
    seen = []

    def opener(place: StoreUrl) -> Ram:
        seen.append(place)
        return Ram()

    open_store("s3://bucket/a/b", openers={"s3": opener})
    assert seen == [StoreUrl("s3", "bucket/a/b")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://s3://bucket",
        "s3://",
        "s3:///",
        "s3://bucket/run#7",
        "s3://bucket/run?Region=x",
        "s3:/bucket/run7",
        "gs:/bucket",
        "file:/data/run7",
        "file://host/data",
        "file://relative",
        "ram://",
        "ram://a/b",
        "ftp://host/run7",
        "~/run7",
        "~",
        "a\0b",
        Path("s3://bucket/run7"),
    ],
)
def test_what_is_no_place_is_refused(text: str | Path) -> None:
    with pytest.raises(CallError):
        open_store(text)
