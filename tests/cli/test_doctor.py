"""`perdure doctor`: what it finds here, what it says where something is missing, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli import doctor
from perdure.cli.main import main
from perdure.store.io_choice import Io
from perdure.store.probe import Probe
from perdure.supervisor.checks import Result


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PERDURE_IO", raising=False)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """What checks find, in place of running them, where a test is not about them."""
    found = [Result(check="clock", word="ok", says="it goes"), Result(check="cpu", word="ok", says="it counts")]

    def run(names: list[str], *_: object, **__: object) -> Iterator[Result]:
        return iter([result for result in found if result.check in names])

    monkeypatch.setattr(doctor, "run", run)
    return found


def words(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, str]:
    assert main(["doctor", *arguments, "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    found = [*told["findings"], *({"what": check.pop("check"), **check} for check in told["checks"])]
    assert all(finding["word"] in ("ok", "note", "problem") and finding["says"] for finding in found)
    assert all(finding["do"] for finding in found if finding["word"] == "problem")
    return {finding["what"]: finding["word"] for finding in found}


def test_the_machine_is_told_without_a_folder(capsys: pytest.CaptureFixture[str], checks: list[Result]) -> None:
    assert set(words(capsys)) == {
        *("perdure", "native code", "io_uring", "shared memory", "huge pages", "torch", "obstore", "cpu", "clock"),
    }


def test_a_good_folder_has_no_problem_and_nothing_is_left_in_it(
    capsys: pytest.CaptureFixture[str], checks: list[Result], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    found = words(capsys, str(tmp_path / "run"))
    assert {found[what] for what in ("commit", "durable names", "engine")} == {"ok"}
    assert {"file system", "room", "O_DIRECT", "locks"} <= found.keys()
    assert os.listdir(tmp_path / "run") == []


def test_the_text_says_what_the_json_says(
    capsys: pytest.CaptureFixture[str], checks: list[Result], tmp_path: Path
) -> None:
    found = words(capsys, str(tmp_path))
    assert main(["doctor", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [(line.split()[0], line[9:24].strip()) for line in lines] == [(word, what) for what, word in found.items()]


def test_calibration_is_shown_and_used_from_then_on(
    capsys: pytest.CaptureFixture[str], checks: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = doctor.calibrate
    monkeypatch.setattr(doctor, "calibrate", lambda folder: real(folder, nbytes=1 << 20, budget_s=0.2))
    assert main(["doctor", str(tmp_path), "--calibrate"]) == 0
    assert "<- kept" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    engine = next(finding["says"] for finding in found["findings"] if finding["what"] == "engine")
    assert engine.endswith("(calibrated)")
    Io.parse(engine.split()[0])


def test_the_environment_decides_and_is_named(
    capsys: pytest.CaptureFixture[str], checks: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_IO", "plain:buffered:1MiB:1")
    assert main(["doctor", str(tmp_path)]) == 0
    assert "plain:buffered:1MiB:1 (PERDURE_IO)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "what", "word"),
    [
        (Probe(rename="no", link="no", sync=None, direct=None, lock=None), "commit", "problem"),
        (Probe(rename="no", link=None, sync=None, direct=None, lock=None), "commit", "ok"),
        (Probe(rename=None, link=None, sync="no", direct=None, lock=None), "durable names", "problem"),
        (Probe(rename=None, link=None, sync=None, direct="no", lock=None), "O_DIRECT", "note"),
        (Probe(rename=None, link=None, sync=None, direct=None, lock="no"), "locks", "note"),
    ],
)
def test_what_a_folder_lacks_is_a_problem_only_if_data_would_be_lost(
    capsys: pytest.CaptureFixture[str],
    checks: list[Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: Probe,
    what: str,
    word: str,
) -> None:
    monkeypatch.setattr(doctor, "probe", lambda path: found)
    assert words(capsys, str(tmp_path), code=int(word == "problem"))[what] == word


def test_a_folder_that_cannot_be_written_is_a_problem(capsys: pytest.CaptureFixture[str], checks: list[Result]) -> None:
    assert words(capsys, "/proc", code=1)["writing"] == "problem"


def test_what_is_not_installed_or_not_allowed_is_a_note(
    capsys: pytest.CaptureFixture[str], checks: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", missing)
    monkeypatch.setattr(doctor, "uring_refusal", lambda: "it is forbidden here")
    monkeypatch.setattr(doctor, "NATIVE", False)
    found = words(capsys)
    assert [found[what] for what in ("torch", "obstore", "io_uring", "native code")] == ["note"] * 4


@pytest.mark.parametrize(
    ("text", "word"), [("always [advise] never", "ok"), ("always advise [never]", "note"), (None, "note")]
)
def test_small_pages_of_shared_memory_are_a_note(
    capsys: pytest.CaptureFixture[str],
    checks: list[Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    word: str,
) -> None:
    if text is not None:
        (tmp_path / "shmem_enabled").write_text(text)
    monkeypatch.setattr(doctor, "_SHMEM_ENABLED", str(tmp_path / "shmem_enabled"))
    assert words(capsys)["huge pages"] == word


def test_a_problem_that_a_check_finds_is_one_of_the_doctor(
    capsys: pytest.CaptureFixture[str], checks: list[Result]
) -> None:
    checks[0] = Result(check="clock", word="problem", says="it went back", do="take the node out")
    assert words(capsys, code=1)["clock"] == "problem"
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem  clock          it went back\n" in out
    assert "-> take the node out" in out


def test_a_folder_that_hung_its_check_is_not_touched_again(
    capsys: pytest.CaptureFixture[str], checks: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says, facts = "no answer within 30 s; given up", {"killed": False}
    checks[0] = Result(check="disk", word="problem", says=says, do="look into the kernel log", facts=facts)

    def touched(path: str) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(doctor, "folder", touched)
    assert words(capsys, str(tmp_path), code=1)["disk"] == "problem"


def test_wrong_calls_are_refused_with_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--calibrate"]) == 64
    assert "needs the folder" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "missing")]) == 64
    assert "is not a folder" in capsys.readouterr().err
    assert main(["doctor", "--checks", "cup"]) == 64
    assert "there is no check 'cup'; there are: cpu" in capsys.readouterr().err
    for context in ("8", '{"gpu": 8}', '{"gpus": "eight"}', "{"):
        assert main(["doctor", "--checks", "--context", context]) == 64
        assert "--context is not what checks are told" in capsys.readouterr().err


def test_checks_alone_are_one_line_of_json_each(tmp_path: Path) -> None:
    """As a launcher starts it."""
    context = json.dumps({"disk_bytes": 4096, "gpus": 0})
    command = [
        sys.executable,
        "-m",
        "perdure",
        "doctor",
        str(tmp_path),
        "--checks",
        "disk,descriptors, clock",
        "--json",
    ]
    done = subprocess.run([*command, "--context", context], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = {line["check"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == {"disk", "descriptors", "clock"}
    assert found["disk"]["facts"]["folder"] == str(tmp_path)
    assert found["disk"]["facts"]["nbytes"] == 4096
    assert os.listdir(tmp_path) == []


def test_checks_alone_as_text_and_their_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--checks", "gpu", "--context", '{"gpus": 64}']
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert out.startswith("problem  gpu            64 GPUs should be there, but ")
    assert "\n                        -> " in out


def test_those_that_apply_are_run_where_none_is_named(
    capsys: pytest.CaptureFixture[str], checks: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks[:] = [Result(check=name, word="ok", says="well") for name in doctor.CHECKS]
    monkeypatch.setattr(doctor, "_NVIDIA", str(tmp_path / "none"))

    def asked(*arguments: str) -> set[str]:
        assert main(["doctor", *arguments, "--checks", "--json"]) == 0
        return {json.loads(line)["check"] for line in capsys.readouterr().out.splitlines()}

    on_a_gpu = {"gpu-matmul", "gpu-copy"}
    assert asked() == doctor.CHECKS.keys() - {"disk"} - on_a_gpu
    assert asked(str(tmp_path)) == doctor.CHECKS.keys() - on_a_gpu
    monkeypatch.setattr(doctor, "_NVIDIA", str(tmp_path))
    assert asked(str(tmp_path)) == doctor.CHECKS.keys()


def test_the_checks_of_gpus_are_functions_of_the_adapter() -> None:
    from perdure.adapters.torch import gpu_check

    for name in ("gpu-matmul", "gpu-copy"):
        module, _, function = doctor.CHECKS[name].where.partition(":")
        assert module == gpu_check.__name__
        assert callable(getattr(gpu_check, function))
