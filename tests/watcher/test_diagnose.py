"""What decides among findings, what files are read how, and what the command prints."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
from pathlib import Path

import pytest

from perdure.cli.main import main
from perdure.errors import CallError
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs import reading
from perdure.watcher.logs.diagnose import diagnose, evidence_of
from perdure.watcher.logs.literals import needed, ways
from perdure.watcher.logs.reading import lines_of, log_files, read_log, read_stream
from perdure.watcher.logs.signatures import _signatures, match_of

ECC = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
CLOSED = "[rank1]: RuntimeError: Connection closed by peer [10.0.0.1]:1"
SHARED = Path(__file__).resolve().parents[3] / "shared/data/watch"


def label_of(text: str) -> Label | None:
    return diagnose(lines_of(text)).label


def test_a_cascade_never_replaces_a_cause_whether_it_comes_before_or_after() -> None:
    assert label_of(f"{CLOSED}\n{ECC}\n{CLOSED}") is Label.GPU_ECC


def test_of_equal_findings_the_earliest_is_the_cause() -> None:
    full = "OSError: [Errno 28] No space left on device"
    worker = "RuntimeError: DataLoader worker (pid(s) 3) exited unexpectedly"
    assert label_of(f"{full}\n{worker}") is Label.DISK_FULL
    assert label_of(f"{worker}\n{full}") is Label.DATALOADER


def test_with_times_on_all_lines_the_clock_decides_across_files() -> None:
    late = lines_of("2026-01-01 00:00:09 OSError: [Errno 28] No space left on device", file="a")
    early = lines_of("2026-01-01 00:00:02 RuntimeError: DataLoader timed out after 9 seconds", file="b", order=1)
    assert diagnose([*late, *early]).label is Label.DATALOADER


def test_what_hardware_says_beats_an_exception_that_came_before() -> None:
    text = "ValueError: bad\nkernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    assert label_of(text) is Label.GPU_OFF_BUS


def test_source_that_a_traceback_quotes_has_not_been_run() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in step\n'
        '    raise RuntimeError("CUDA out of memory, no space left on device")\n'
        "KeyError: 'tokens'"
    )
    assert label_of(text) is Label.USER_CODE


def test_a_retry_that_was_announced_is_less_than_an_exception() -> None:
    text = "S3 read timed out, retrying (attempt 1/5)\nstep 3 loss: 2.0\nKeyError: 'tokens'"
    assert label_of(text) is Label.USER_CODE


def test_an_error_that_nothing_knows_is_unknown_and_shows_what_is_new() -> None:
    healthy = "\n".join(f"[rank{i % 4}]: worker is ready {i}" for i in range(40))
    said = diagnose(lines_of(f"{healthy}\n[rank2]: frobnicator gave a fatal quux\n[rank1]: worker is ready 41"))
    assert (said.label, said.owner, said.action) == (Label.UNKNOWN, Owner.TRANSIENT, Action.RESTART)
    assert said.evidence[0].text == "frobnicator gave a fatal quux"


def test_one_unexplained_gpu_error_is_the_nodes_and_the_same_on_several_nodes_is_not() -> None:
    one = "gpu-1: RuntimeError: CUDA error: unknown error"
    assert diagnose(lines_of(one)).action is Action.EVICT
    said = diagnose(lines_of(f"{one}\ngpu-2: RuntimeError: CUDA error: unknown error"))
    assert (said.label, said.action, said.nodes) == (Label.LIB_BUG, Action.RESTART, ())


def test_ranks_and_nodes_are_named_where_a_machine_is_accused() -> None:
    text = "Jan 12 03:14:07 dgx-021 kernel: NVRM: Xid (PCI:0000:87:00): 48, pid=1, DBE"
    assert diagnose(lines_of(text)).nodes == ("dgx-021",)
    assert diagnose(lines_of(ECC)).ranks == (5,)


def test_the_rank_behind_in_its_collectives_is_named_without_a_verdict() -> None:
    line = (
        "[rank{0}]: [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=6) ran"
    )
    said = diagnose(lines_of("\n".join(line.format(rank, 70 if rank == 2 else 71) for rank in range(4))))
    assert said.label is Label.UNKNOWN
    assert "rank 2" in said.why


def test_a_diagnosis_becomes_evidence_and_no_failure_becomes_none() -> None:
    found = evidence_of(diagnose(lines_of(ECC)), at_s=3.0)
    assert found is not None
    assert (found.label, found.ranks, found.raw) == (Label.GPU_ECC, (5,), (ECC,))
    assert evidence_of(diagnose(lines_of("step 1 loss: 2.0")), at_s=3.0) is None


@pytest.mark.parametrize(
    ("raw", "text", "rank", "node"),
    [
        ("[default3]:Traceback", "Traceback", 3, ""),
        ("12: step 4", "step 4", 12, ""),
        ("[1,7]<stderr>: boom", "boom", 7, ""),
        ("gpu-4:17:99 [2] NCCL WARN x", "NCCL WARN x", None, "gpu-4"),
        ("[pod/worker-2/pytorch] ValueError: x", "ValueError: x", None, "worker-2"),
        ("Nov  3 01:02:03 n7 kernel: NVRM: x", "NVRM: x", None, "n7"),
        ("(Trainer pid=7, ip=10.0.0.4) boom", "boom", None, "10.0.0.4"),
        ('{"log":"ValueError: x\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}', "ValueError: x", None, ""),
        ("\x1b[31m2026-01-01T00:00:00.5Z ERROR boom\x1b[0m", "boom", None, ""),
        ("  0%|  | 0/9\r100%|##| 9/9", "100%|##| 9/9", None, ""),
    ],
)
def test_prefixes_are_taken_off_and_what_they_say_is_kept(raw: str, text: str, rank: int | None, node: str) -> None:
    line = lines_of(raw)[0]
    assert (line.text, line.rank, line.node) == (text, rank, node)


def test_of_a_large_log_head_and_tail_are_read_with_the_numbers_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HEAD_BYTES", 1000)
    monkeypatch.setattr(reading, "TAIL_BYTES", 2 << 20)
    rows = [f"row {n} {'x' * 50}" for n in range(1, 150_001)]
    lines = read_stream(io.BytesIO("\n".join(rows).encode()), file="big")
    assert lines[0].number == 1
    assert len(lines) < len(rows)
    for line in lines:
        assert line.raw == rows[line.number - 1]
    assert lines[-1].number == len(rows)


def test_any_bytes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(random.Random(1).randbytes(20_000) + b"\n" + ECC.encode())
    assert diagnose(read_log(path)).label is Label.GPU_ECC


def test_gzip_is_read_and_broken_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(ECC.encode()))
    assert read_log(path)[0].raw == ECC
    path.write_bytes(path.read_bytes()[:-9])
    problems: list[str] = []
    assert ECC.startswith(read_log(path, problems=problems)[0].raw)
    assert "read up to there" in problems[0]
    path.write_bytes(path.read_bytes()[:2])
    with pytest.raises(CallError, match="cannot be read"):
        read_log(path)


def test_folders_give_all_files_below_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.log").write_text("x")
    (tmp_path / "2.log").write_text("x")
    assert [path.name for path in log_files([str(tmp_path)])] == ["2.log", "1.log"]
    with pytest.raises(CallError, match="no log"):
        log_files([str(tmp_path / "none")])


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank5.log").write_text(f"step 1 loss: 2.0\n{ECC}\n")
    assert main(["watch", "diagnose", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["label"], said["at_fault"], said["action"]) == ("hw.gpu_ecc", "node", "evict")
    assert said["evidence"] == [{"file": str(tmp_path / "rank5.log"), "line_number": 2, "text": ECC}]
    assert (said["ranks"], said["nodes"]) == ([5], [])
    assert 0 < said["confidence"] <= 1


def test_the_command_reads_what_comes_in_and_tells_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ECC.encode())))
    assert main(["watch", "diagnose", "-"]) == 0
    told = capsys.readouterr().out
    assert "hw.gpu_ecc" in told
    assert "replace the node" in told
    assert "rank 5" in told


def test_the_command_says_that_nothing_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("step 1 loss: 2.0\n")
    assert main(["watch", "diagnose", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["label"], said["action"], said["evidence"]) == (None, None, [])


@pytest.mark.parametrize("what", ["empty folder", "empty files", "blank lines"])
def test_nothing_to_read_is_not_called_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    for name in ("a.log", "b.log") if what != "empty folder" else ():
        (tmp_path / name).write_text("\n  \n" if what == "blank lines" else "")
    assert main(["watch", "diagnose", str(tmp_path)]) == 64
    told = capsys.readouterr()
    assert (told.out, f"nothing to read in {tmp_path}: " in told.err) == ("", True)
    assert main(["watch", "diagnose", str(tmp_path), "--json"]) == 64
    said = json.loads(capsys.readouterr().out)
    assert (said["label"], said["action"], said["at_fault"]) == ("nothing_to_read", None, "nobody")


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("rank_3.log", "rank_0.log"), [3]),
        (("attempt_0/3/stderr.log", "attempt_0/0/stderr.log"), [3]),
        (("3/stderr.log", "0/stderr.log"), [3]),
        (("node2-rank5.err", "node1-rank0.err"), [5]),
        (("3.log", "0.log"), [3]),
        (("20311.log", "train.log"), []),
        (("node1/rank_3.log", "node2/rank_3.log"), []),
        (("node1-rank3.err", "node2-rank3.err"), []),
    ],
)
def test_lines_without_a_rank_have_that_of_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...], ranks: list[int]
) -> None:
    bad = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    for name, text in zip(names, (bad, "step 1 loss: 2.0"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert main(["watch", "diagnose", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["label"], said["ranks"]) == ("hw.gpu_ecc", ranks)


def test_the_command_judges_stacks_of_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reduce = ["all_reduce (torch/distributed/distributed_c10d.py:9)", "step (train.py:3)"]
    load = ["wait (threading.py:3)", "_try_get_data (torch/utils/data/dataloader.py:9)", "step (train.py:2)"]
    rows = [{"rank": n, "node": f"n{n}", "frames": load if n == 2 else reduce} for n in range(4)]
    (tmp_path / "stacks.json").write_text(json.dumps({"ranks": rows}))
    assert main(["watch", "diagnose", str(tmp_path / "stacks.json"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["label"], said["ranks"], said["nodes"]) == ("sw.dataloader", [2], ["n2"])


def test_looking_for_words_first_never_hides_a_match() -> None:
    import test_diagnose_cases
    import test_diagnose_wordings

    texts = [case[2] for case in test_diagnose_cases.CASES] + [case[3] for case in test_diagnose_wordings.CASES]
    lines = [line.text for text in texts for line in lines_of(text)[:3]]
    for signature in _signatures():
        for way in ways(signature.pattern):
            words = needed(way)
            pattern = re.compile(way, re.IGNORECASE)
            for line in lines:
                if pattern.search(line):
                    assert not words or any(word in line.lower() for word in words), (way, words, line)


def test_most_ways_to_match_have_a_word_to_look_for() -> None:
    without = [way for each in _signatures() for way in ways(each.pattern) if not needed(way)]
    total = sum(len(ways(each.pattern)) for each in _signatures())
    assert len(without) < total / 20, without


def test_every_signature_is_reachable_by_its_own_first_words() -> None:
    assert match_of("NVML: Driver/library version mismatch") is not None
    assert len({(each.label, each.means) for each in _signatures()}) >= 40


@pytest.mark.skipif(not SHARED.exists(), reason=f"no excerpts in {SHARED}")
def test_excerpts_of_real_jobs_are_diagnosed_as_well_as_asked() -> None:
    rows = [json.loads(row) for row in (SHARED / "log_excerpts.jsonl").read_text().splitlines()]
    said = [diagnose(lines_of(row["text"])) for row in rows]
    assert sum(str(one.owner) == row["at_fault"] for one, row in zip(said, rows, strict=True)) >= 0.88 * len(rows)
    assert sum(str(one.action) == row["action"] for one, row in zip(said, rows, strict=True)) >= 0.85 * len(rows)
