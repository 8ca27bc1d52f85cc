"""What ranks did over time: who is slow stands out, and the map never grows beyond its columns and rows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.watcher.heat import Doing, Heat, HeatRecord, cells_of
from perdure.watcher.samples import GroupState, RankSample


def look(now_s: float, own_s: list[float], *, per_node: int = 2, **fields: object) -> list[RankSample]:
    step_s = max(own_s)
    return [
        RankSample(
            rank=rank, node=f"n{rank // per_node}", at_s=now_s, state="S", phase="forward",
            step_s=step_s, compute_s=own, wait_s=step_s - own, **{"step": int(now_s), **fields},
        )  # type: ignore[arg-type]
        for rank, own in enumerate(own_s)
    ]  # fmt: skip


def recorded(heat: Heat, now_s: float) -> HeatRecord:
    """As it is after it was written and read."""
    text = msgspec.json.encode(heat.record(now_s=now_s, wall_s=1e9 + now_s))
    return msgspec.json.decode(text, type=HeatRecord)


def ratios(record: HeatRecord, which: str = "recent") -> np.ndarray:
    cells = cells_of(getattr(record, which), len(record.rows))[0].astype(float)
    return np.where(cells == 0, np.nan, 2 ** ((cells - 128) / 48))


def test_a_slow_rank_stands_out_and_the_others_do_not() -> None:
    heat = Heat(job="j")
    for second in range(20):
        heat.feed(look(second, [1.0, 1.0, 1.2 if second >= 10 else 1.0, 1.0]), now_s=100.0 + second)
    found = recorded(heat, 120.0)
    assert [row.name for row in found.rows] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [row.node for row in found.rows] == ["n0", "n0", "n1", "n1"]
    r = ratios(found)
    assert r.shape == (4, 20)
    assert np.allclose(r[2], [1.0] * 10 + [1.2] * 10, rtol=0.02)
    assert np.allclose(r[[0, 1, 3]], 1.0, rtol=0.02)
    waits = cells_of(found.recent, 4)[2]
    assert waits[2, -1] == 1  # 0 %
    assert waits[0, -1] == 1 + 17
    assert (found.worst[0].rank, found.worst[0].doing) == (2, "works")
    assert found.worst[0].ratio == pytest.approx(1.2)
    assert heat.strip(2, 3) == pytest.approx([1.2] * 3, rel=0.02)
    assert (found.recent.every_s, found.recent.first_s) == (1.0, 100.0)


def test_stages_of_a_pipeline_are_not_compared_once_that_is_known() -> None:
    heat = Heat()
    for second in range(30):
        ranks = []
        for each in look(second, [1.0, 1.0, 2.0, 2.2], step=8 * second):
            name = f"tp{each.rank // 2}"
            groups = (
                GroupState(group=name, size=2, enqueued=64 * second, completed=64 * second),
                GroupState(group="pp", size=2, enqueued=8 * second, completed=8 * second, op="send"),
            )
            ranks.append(msgspec.structs.replace(each, groups=groups))
        heat.feed(ranks, now_s=float(second))
    r = ratios(recorded(heat, 30.0))
    assert r[2, 0] == pytest.approx(2.0, rel=0.02)
    assert np.allclose(r[:, -1], [1.0, 1.0, 1 / 1.1, 1.1], rtol=0.02)


def test_of_two_ranks_each_is_compared_with_the_other() -> None:
    heat = Heat()
    heat.feed(look(0, [1.0, 1.5]), now_s=0.0)
    assert np.allclose(ratios(recorded(heat, 0.0))[:, 0], [1 / 1.5, 1.5], rtol=0.02)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=12))
def test_a_ratio_is_that_to_the_median_of_the_others(own_s: list[float]) -> None:
    heat = Heat()
    heat.feed(look(0, own_s), now_s=0.0)
    for rank, own in enumerate(own_s):
        others = own_s[:rank] + own_s[rank + 1 :]
        assert heat.now[rank].ratio == pytest.approx(own / float(np.median(others)))


def test_only_ranks_of_equal_work_are_compared() -> None:
    heat = Heat()
    samples = look(0, [1.0, 1.0, 3.0, 3.0])
    heat.feed([msgspec.structs.replace(s, replicas="ab"[s.rank // 2]) for s in samples], now_s=0.0)
    assert [heat.now[rank].ratio for rank in range(4)] == [1.0] * 4


def test_what_ranks_do_is_told_by_the_gravest() -> None:
    heat = Heat()
    waiting = look(0, [1.0, 1.0], in_collective=True)
    stopped = [waiting[0], msgspec.structs.replace(waiting[1], state="T")]
    heat.feed(waiting, now_s=0.0)
    heat.feed(stopped, now_s=0.5)
    heat.feed(waiting, now_s=1.0)
    doing = cells_of(recorded(heat, 2.0).recent, 2)[1]
    assert [[Doing(cell) for cell in row] for row in doing] == [
        [Doing.WAITS, Doing.WAITS],
        [Doing.STOPPED, Doing.WAITS],
    ]
    one = waiting[0]
    for fields, what in (
        ({"finished": True, "exit_code": 0}, Doing.FINISHED),
        ({"exit_signal": 9}, Doing.GONE),
        ({"beat": 4, "beat_age_s": 9.0}, Doing.SILENT),
        ({"state": "D"}, Doing.IN_KERNEL),
        ({"phase": "saving"}, Doing.SAVES),
        ({"in_collective": False}, Doing.WORKS),
    ):
        other = Heat()
        other.feed([msgspec.structs.replace(one, **fields)], now_s=0.0)
        assert other.now[0].doing == what.name.lower()


def test_the_recent_map_forgets_and_the_whole_one_gets_coarser() -> None:
    heat = Heat(columns=20)
    for second in range(170):
        heat.feed(look(second, [1.0, 1.0, 1.3 if second == 50 else 1.0]), now_s=7.0 + second)
    found = recorded(heat, 177.0)
    assert found.recent.columns <= 20
    assert found.recent.first_s + found.recent.columns == 177.0
    assert found.whole.every_s == 16.0
    assert found.whole.first_s == 7.0
    assert np.flatnonzero(ratios(found, "whole")[2] > 1.2).tolist() == [50 // 16]
    assert ratios(found)[2].max() < 1.1


@pytest.mark.parametrize("gap_s", [19.0, 25.0, 1e6])
def test_a_gap_stays_empty(gap_s: float) -> None:
    heat = Heat(columns=20)
    heat.feed(look(0, [1.0, 1.0]), now_s=0.0)
    heat.feed(look(0, [1.0, 1.0]), now_s=gap_s)
    found = recorded(heat, gap_s)
    for each in (found.recent, found.whole):
        assert each.columns <= 20
        assert each.first_s + (each.columns - 1) * each.every_s <= gap_s < each.first_s + each.columns * each.every_s
    assert np.isfinite(ratios(found, "whole")).sum(axis=1).tolist() == [2, 2]


def test_with_many_ranks_a_row_is_a_node_and_then_several() -> None:
    heat = Heat(rows=8)
    heat.feed(look(0, [1.0] * 8), now_s=0.0)
    assert recorded(heat, 1.0).rows_are == "rank"
    heat.feed(look(1, [1.0] * 12 + [1.4] + [1.0] * 3), now_s=1.0)
    found = recorded(heat, 2.0)
    assert (found.rows_are, [row.name for row in found.rows]) == ("node", [f"n{i}" for i in range(8)])
    assert np.flatnonzero(ratios(found)[:, 1] > 1.3).tolist() == [6]
    assert np.isfinite(ratios(found)[:, 0]).tolist() == [True] * 4 + [False] * 4  # what was seen before is kept
    assert cells_of(found.recent, 8)[2, 6, 1] == 1  # the slow rank's waiting, not its neighbour's
    heat.feed(look(2, [1.0] * 40), now_s=2.0)
    found = recorded(heat, 3.0)
    assert (found.rows_are, len(found.rows), found.rows[1].name, found.ranks) == ("nodes", 5, "n4 to n7", 40)
    assert np.flatnonzero(ratios(found)[:, 1] > 1.3).tolist() == [1]


def test_sixteen_thousand_ranks_keep_to_the_bounds() -> None:
    heat = Heat()
    own = np.random.default_rng(0).normal(1, 0.01, (3, 16384))
    own[2, 9999] = 1.5
    for second in range(3):
        heat.feed(look(second, own[second].tolist(), per_node=8), now_s=float(second))
    found = recorded(heat, 3.0)
    assert (found.rows_are, len(found.rows)) == ("nodes", 512)
    assert (found.worst[0].rank, found.worst[0].node) == (9999, "n1249")
    assert np.flatnonzero(ratios(found)[:, 2] > 1.3).tolist() == [1249 // 4]
