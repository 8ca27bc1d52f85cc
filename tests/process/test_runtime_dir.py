"""The private folder: made once, refused where others could reach it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.errors import StorageError
from perdure.process.runtime_dir import runtime_dir


def test_it_is_made_private_and_found_again(tmp_path: Path) -> None:
    place = runtime_dir(home=str(tmp_path))
    assert place == tmp_path / "perdure"
    assert place.stat().st_mode & 0o777 == 0o700
    assert runtime_dir(home=str(tmp_path)) == place


def test_without_a_home_it_is_in_tmp_under_the_users_number(tmp_path: Path) -> None:
    assert runtime_dir(home="/nowhere", tmp=str(tmp_path)).name == f"perdure-{os.geteuid()}"


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "perdure").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="not a link"):
        runtime_dir(home=str(tmp_path))


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "perdure").mkdir()
    (tmp_path / "perdure").chmod(0o755)
    with pytest.raises(StorageError, match="chmod 700"):
        runtime_dir(home=str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "perdure").mkdir(mode=0o700)
    os.chown(tmp_path / "perdure", 65534, 65534)
    with pytest.raises(StorageError, match="belongs to user 65534"):
        runtime_dir(home=str(tmp_path))
