"""Lines of one kind get one template, others another, and what is rare stands out."""

from __future__ import annotations

import random

from perdure.watcher.logs.reading import lines_of
from perdure.watcher.logs.templates import Miner, masked, novel


def test_lines_that_differ_in_numbers_paths_and_ids_are_one_kind() -> None:
    miner = Miner()
    for n in range(50):
        miner.add(f"step {n} wrote {n * 1.5} MB to /ckpt/{n}/model.bin at 0x{n:x} id {n:012d}ab")
    assert [str(each) for each in miner.templates] == ["step <n> wrote <n> MB to <path> at <hex> id <id>"]
    assert miner.templates[0].count == 50


def test_words_that_differ_become_wildcards_and_other_lines_stay_apart() -> None:
    miner = Miner()
    for host in ("red", "green", "blue"):
        miner.add(f"connected to host {host} over ib")
        miner.add(f"loading shard from {host}")
    assert sorted(map(str, miner.templates)) == ["connected to host <*> over ib", "loading shard from <*>"]


def test_kinds_are_found_again_in_a_shuffled_mixture() -> None:
    kinds = [
        "epoch {} loss {} rate {}",
        "saved checkpoint {} in {} seconds",
        "worker {} of node {} is ready now",
        "evaluation gives perplexity {}",
        "garbage collection took {} ms on thread {}",
    ]
    rows = [
        (n, kind.format(*random.Random(i).choices(range(10**6), k=3)))
        for i in range(60)
        for n, kind in enumerate(kinds)
    ]
    random.Random(7).shuffle(rows)
    miner = Miner()
    found = {(n, miner.add(row).number) for n, row in rows}
    assert len(found) == len(kinds) == len(miner.templates)


def test_ranks_are_counted_by_template() -> None:
    miner = Miner()
    for rank in range(4):
        miner.add("ready", rank=rank)
    assert miner.add("strange quark", rank=2).ranks == {2: 1}
    assert set(miner.templates[0].ranks) == {0, 1, 2, 3}


def test_a_line_of_one_rank_stands_out_among_those_of_all() -> None:
    text = "\n".join(f"[rank{n % 8}]: step {n // 8} done" for n in range(400))
    rows = text.split("\n")
    rows.insert(333, "[rank5]: something odd with tensor parallel group")
    assert novel(lines_of(rows))[0].raw == "[rank5]: something odd with tensor parallel group"


def test_a_line_of_another_length_or_an_empty_one_is_no_error() -> None:
    miner = Miner()
    assert miner.add("").words == []
    assert miner.add("a").number != miner.add("a b").number
    assert masked("") == ""
