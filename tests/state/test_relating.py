"""Relations of a real training are found from bytes alone, make frames smaller, and bring every bit back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch

from perdure.codec import decode, encode
from perdure.errors import CallError, NotCovered
from perdure.layout import Box
from perdure.state.pricing import codec_for
from perdure.state.relating import base_of, relate
from perdure.state.relations import Previous, Relation, Rounding, SecondMoment, Update, decoding_order, sources
from perdure.state.sampling import Block, places

Blocks = dict[str, Block]
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
WIDTH = 48


def block_of(tensor: torch.Tensor) -> Block:
    dtype = str(tensor.dtype).removeprefix("torch.")
    words = tensor.detach().contiguous().view(torch.uint8 if tensor.dim() else tensor.dtype)
    return Block(dtype, Box.whole(tuple(tensor.shape)), words.numpy().copy().reshape(-1).view(np.uint8))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net(dtype: torch.dtype) -> torch.nn.Sequential:
    """Three equal layers between two others."""
    torch.manual_seed(1)
    linear = torch.nn.Linear
    layers = [linear(32, WIDTH), *(linear(WIDTH, WIDTH) for _ in range(3)), linear(WIDTH, 16)]
    return torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.Tanh()))).to(dtype)


def trained(
    make: Make,
    at: list[int],
    *,
    half: torch.dtype | None = None,
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
) -> list[Blocks]:
    """The states after the steps ``at``: names such as w3, w3.exp_avg; with ``half`` also the copies, h3."""
    model = net(dtype)
    params = list(model.parameters())
    optimizer = make(params)
    draw = torch.Generator().manual_seed(2)
    kept = []
    for step in range(1, max(at) + 1):
        x = torch.randn(64, 32, generator=draw).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = (model(x) - torch.sin(3 * x[:, :16])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in at:
            state: Blocks = {}
            for i, param in enumerate(params):
                state[f"w{i}"] = block_of(param)
                if half is not None:
                    state[f"h{i}"] = block_of(param.detach().to(half))
                for key, value in optimizer.state[param].items():
                    if torch.is_tensor(value) and value.dim():
                        state[f"w{i}.{key}"] = block_of(value)
            kept.append(state)
    return kept


def shuffled(states: list[Blocks]) -> tuple[list[Blocks], dict[str, str]]:
    """The same blocks under names that say nothing, in an order that says nothing; and the old name of each."""
    names = sorted(states[0])
    order = np.random.default_rng(4).permutation(len(names))
    meant = {f"t{place:04}": names[i] for place, i in enumerate(order.tolist())}
    return [{name: state[old] for name, old in meant.items()} for state in states], meant


def sizes_of_round_trip(now: Blocks, base: Blocks, relations: Mapping[str, Relation]) -> dict[str, int]:
    """Encode all blocks, then decode them in their order, bases from what is decoded; the bytes of each frame."""
    frames = {}
    for name, block in now.items():
        below = base_of(name, relations[name], now, base) if name in relations else None
        codec = "planes" if below is None else codec_for(block.dtype)
        frames[name] = encode(block.data, codec=codec, base=below, dtype=block.dtype, shape=block.box.shape)
    back: Blocks = {}
    order = decoding_order(relations)
    for name in [name for name in now if name not in relations] + order:
        block = now[name]
        below = None
        if name in relations:
            known = {of.name: back[of.name] for of in sources(name, relations[name]) if of.step == "this"}
            empty = Block(block.dtype, block.box, np.zeros_like(block.data))
            below = base_of(name, relations[name], {name: empty, **known}, base)
        out = decode(frames[name], base=below)
        back[name] = Block(block.dtype, block.box, out.reshape(-1).view(np.uint8))
    assert {name: block.data.tobytes() for name, block in back.items()} == {
        name: block.data.tobytes() for name, block in now.items()
    }
    return {name: len(frame) for name, frame in frames.items()}


ADAMS: dict[str, Make] = {
    "AdamW, the largest second moment": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1, fused=True),
    "AdamW, long memory": lambda p: torch.optim.AdamW(p, lr=2e-4, betas=(0.95, 0.99), eps=1e-6),
    "Adam with decay in the gradient": lambda p: torch.optim.Adam(p, lr=3e-3, weight_decay=0.01),
}


@pytest.mark.parametrize("make", ADAMS.values(), ids=list(ADAMS))
def test_one_step_of_adam_is_found_and_costs_little_more_than_its_first_moments(make: Make) -> None:
    autocast = make is ADAMS["AdamW, foreach"]  # parameters that are masters themselves, gradients through bfloat16
    (base, now), meant = shuffled(trained(make, [30, 31], half=torch.bfloat16, autocast=autocast))
    relations = relate(now, base)
    for name, old in meant.items():
        if now[name].box.size < 1000:
            continue
        found = relations.get(name)
        if old.startswith("h"):
            assert isinstance(found, Rounding)
            assert meant[found.of] == "w" + old[1:]
        elif old.endswith(".exp_avg_sq"):
            assert isinstance(found, SecondMoment)
            assert (meant[found.moment.name], meant[found.before.name]) == (old[:-3], old[:-3])
        elif "." not in old:
            assert isinstance(found, Update)
            assert {meant[term.moment.name] for term in found.terms} == {old + ".exp_avg"}
            squares = {meant[term.square.name].replace(".max_", ".") for term in found.terms if term.square}
            assert squares == {old + ".exp_avg_sq"}
    sizes = sizes_of_round_trip(now, base, relations)
    moments = sum(size for name, size in sizes.items() if meant[name].endswith("exp_avg"))
    plain = sum(
        len(encode(b.data, codec=codec_for(b.dtype), base=base[n].data, dtype=b.dtype, shape=b.box.shape))
        for n, b in now.items()
    )
    largest = sum(size for name, size in sizes.items() if ".max_" in meant[name])  # of these nothing is known
    assert sum(sizes.values()) < 1.35 * moments + largest
    assert sum(sizes.values()) < 0.6 * plain


@pytest.mark.parametrize("steps", [2, 10])
def test_several_steps_of_adam_save_less_but_never_cost_more(steps: int) -> None:
    (base, now), meant = shuffled(trained(ADAMS["AdamW, foreach"], [40, 40 + steps], half=torch.float16))
    relations = relate(now, base)
    assert {type(relations[n]) for n, old in meant.items() if old[0] == "h" and now[n].box.size > 1000} == {Rounding}
    sizes = sizes_of_round_trip(now, base, relations)
    plain = {
        name: len(encode(b.data, codec=codec_for(b.dtype), base=base[name].data, dtype=b.dtype, shape=b.box.shape))
        for name, b in now.items()
    }
    for name, size in sizes.items():
        assert size < 1.05 * plain[name] + 300, meant[name]
    masters = [name for name, old in meant.items() if old in ("w2", "w4", "w6")]
    assert all(isinstance(relations[name], Update) for name in masters)
    assert sum(sizes[name] for name in masters) < 0.97 * sum(plain[name] for name in masters)


def test_masters_in_double_precision_are_found_with_both_their_copies() -> None:
    base, now = trained(ADAMS["AdamW, foreach"], [20, 21], half=torch.float32, dtype=torch.float64)
    for state in (base, now):
        state["b2"] = block_of(torch.from_numpy(state["w2"].data.view(np.float64).reshape(WIDTH, WIDTH)).bfloat16())
    relations = relate(now, base)
    assert relations["h2"] == Rounding("w2")
    assert relations["b2"] in (Rounding("w2"), Rounding("h2"))
    assert isinstance(relations["w2"], Update)
    sizes = sizes_of_round_trip(now, base, relations)
    assert sizes["w2"] < 0.25 * now["w2"].data.size


def test_momentum_of_plain_descent_is_found() -> None:
    sgd: Make = lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=1e-3)  # noqa: E731
    base, now = trained(sgd, [20, 21], half=torch.bfloat16)
    relations = relate(now, base)
    for name in ("w2", "w4", "w6"):
        found = relations[name]
        assert isinstance(found, Update)
        # of this step, and where that fits better of the step before, too
        assert {(term.moment.name, term.square) for term in found.terms} == {(f"{name}.momentum_buffer", None)}
    sizes = sizes_of_round_trip(now, base, relations)
    for name in ("w2", "w4", "w6"):
        assert sizes[name] < 0.1 * now[name].data.size


@pytest.mark.parametrize(
    "make",
    [lambda p: torch.optim.Adafactor(p, lr=1e-3), lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9)],
    ids=["Adafactor", "RMSprop"],
)
def test_other_optimizers_lose_no_bit(make: Make) -> None:
    base, now = trained(make, [10, 11], half=torch.bfloat16)
    relations = relate(now, base)
    assert relations["h2"] == Rounding("w2")
    sizes_of_round_trip(now, base, relations)


def test_a_copy_that_is_rounded_at_random_is_still_found() -> None:
    rng = np.random.default_rng(5)
    masters = [(rng.standard_normal(5000) * 0.02).astype(np.float32) for _ in range(5)]
    noise = rng.integers(0, 1 << 16, 5000).astype(np.uint32)
    copy = (masters[3].view(np.uint32) + noise >> np.uint32(16)).astype(np.uint16)
    box = Box.whole((5000,))
    now = {f"w{i}": Block("float32", box, each.view(np.uint8)) for i, each in enumerate(masters)}
    now["copy"] = Block("bfloat16", box, copy.view(np.uint8))
    relations = relate(now, {})
    assert relations == {"copy": Rounding("w3")}
    assert sizes_of_round_trip(now, {}, relations)["copy"] < 0.2 * copy.nbytes


def test_decoys_of_the_same_shape_are_not_taken() -> None:
    """Masters and moments of another training, and copies that were changed, beside the right ones."""
    base, now = trained(ADAMS["AdamW, foreach"], [30, 31], half=torch.bfloat16)
    rng = np.random.default_rng(6)
    for name in list(now):
        for state in (base, now):
            block = state[name]
            real = block.data.view(np.uint16 if block.dtype == "bfloat16" else np.float32)
            other = Block(block.dtype, block.box, np.ascontiguousarray(rng.permutation(real)).view(np.uint8))
            state[f"decoy.{name}"] = other
    relations = relate(now, base)
    for name in ("w2", "w4", "w6"):
        needed = {of.name for of in sources(name, relations[name])}
        assert needed == {name, f"{name}.exp_avg", f"{name}.exp_avg_sq"}
        assert relations["h" + name[1:]] == Rounding(name)
        assert {of.name for of in sources(f"{name}.exp_avg_sq", relations[f"{name}.exp_avg_sq"])} == {
            f"{name}.exp_avg",
            f"{name}.exp_avg_sq",
        }
    # The decoys were shuffled in each step anew: what is a decoy follows from nothing, or costs as much on anything.
    kinds = {type(found) for name, found in relations.items() if name in ("decoy.w2", "decoy.w4", "decoy.w6")}
    assert kinds <= {Previous}


def unrelated(count: int, size: int, rng: np.random.Generator) -> list[Blocks]:
    box = Box.whole((size,))

    def one(i: int) -> Block:
        values = rng.standard_normal(size).astype(np.float32) * np.float32(10.0 ** rng.integers(-6, 1))
        return Block("float32", box, (values if i % 3 else values**2).view(np.uint8))

    states = [{f"t{i}": one(i) for i in range(count)} for _ in range(2)]
    for state in states:
        for i in range(count // 4):
            state[f"h{i}"] = Block("bfloat16", box, rng.integers(0, 256, 2 * size).astype(np.uint8))
    return states


def test_nothing_is_found_among_unrelated_tensors() -> None:
    base, now = unrelated(200, 600, np.random.default_rng(7))
    relations = relate(now, base)
    assert {type(relation) for relation in relations.values()} <= {Previous}
    sizes_of_round_trip(now, base, relations)


def test_thousands_of_tensors_of_one_shape_take_no_more_than_their_product() -> None:
    """All pairs are looked at only by products of matrices: ten times the tensors take nothing like a hundred times."""

    def seconds(count: int) -> float:
        base, now = unrelated(count, 256, np.random.default_rng(8))
        start = time.process_time()
        relate(now, base)
        return time.process_time() - start

    seconds(100)
    few = statistics.median(seconds(400) for _ in range(5))
    assert min(seconds(4000) for _ in range(2)) < 40 * max(few, 0.02)


def test_blocks_with_strange_numbers_or_without_elements_break_nothing() -> None:
    rng = np.random.default_rng(9)
    values = {
        "nan": np.full(300, np.nan, np.float32),
        "inf": np.where(np.arange(300) % 7 == 0, np.inf, rng.standard_normal(300)).astype(np.float32),
        "zero": np.zeros(300, np.float32),
        "one": np.ones(300, np.float32),
        "tiny": np.full(300, 1e-45, np.float32) * np.arange(300, dtype=np.float32),
        "large": np.full(300, 3e38, np.float32),
    }
    now = {name: Block("float32", Box.whole((300,)), each.view(np.uint8)) for name, each in values.items()}
    now["none"] = Block("float32", Box.whole((0, 5)), np.zeros(0, np.uint8))
    now["scalar"] = Block("float32", Box.whole(()), np.zeros(4, np.uint8))
    now["count"] = Block("int64", Box.whole((3,)), np.zeros(24, np.uint8))
    now["complex"] = Block("complex64", Box.whole((3,)), np.zeros(24, np.uint8))
    base = {name: Block(block.dtype, block.box, np.roll(block.data, 4)) for name, block in now.items()}
    for below in (base, now, {}):
        relations = relate(now, below)
        sizes_of_round_trip(now, below, relations)


def test_a_block_of_another_box_is_no_base() -> None:
    data = np.arange(400, dtype=np.float32).view(np.uint8)
    now = {"w": Block("float32", Box((0,), (400,)), data)}
    assert relate(now, {"w": Block("float32", Box((400,), (800,)), data)}) == {}
    assert relate(now, {"w": Block("float32", Box((0,), (400,)), data)}) == {"w": Previous()}


def test_bytes_that_are_no_block_are_refused() -> None:
    with pytest.raises(CallError, match="no float32 block"):
        Block("float32", Box.whole((3,)), np.zeros(11, np.uint8))


def test_a_base_whose_sources_do_not_fit_is_refused_by_name() -> None:
    def block(dtype: str, n: int) -> Block:
        return Block(dtype, Box.whole((n,)), np.zeros(n * (2 if dtype == "bfloat16" else 4), np.uint8))

    now = {"h": block("bfloat16", 4), "w": block("float32", 4), "m": block("int32", 4), "x": block("float32", 5)}
    with pytest.raises(NotCovered, match="computed from gone of the this step"):
        base_of("h", Rounding("gone"), now, {})
    with pytest.raises(NotCovered, match="from w of the base step"):
        base_of("w", Previous(), now, {})
    with pytest.raises(NotCovered, match="from w of the base step"):
        base_of("w", Previous(), now, {"w": now["x"]})
    with pytest.raises(CallError, match="no bfloat16 is the rounding of int32"):
        base_of("h", Rounding("m"), now, {})
    with pytest.raises(CallError, match="w is int32, w is float32"):
        base_of("w", Previous(), now, {"w": now["m"]})


def large_step(rng: np.random.Generator) -> tuple[Blocks, Blocks]:
    """One step of momentum on a tensor that is large enough to be coded for a trial."""
    size = 1 << 18
    old, gradient, moment = (rng.standard_normal(size).astype(np.float32) for _ in range(3))
    after = np.float32(0.9) * moment + gradient
    new = old - np.float32(0.01) * after
    box = Box.whole((size,))
    states = [
        {name: Block("float32", box, each.view(np.uint8)) for name, each in (("w", w), ("m", m))}
        for w, m in ((old, moment), (new, after))
    ]
    return states[0], states[1]


def test_a_large_tensor_takes_the_relation_that_a_coded_sample_proves() -> None:
    base, now = large_step(np.random.default_rng(10))
    relations = relate(now, base)
    assert {of.name for of in sources("w", relations["w"])} == {"w", "m"}
    assert sizes_of_round_trip(now, base, relations)["w"] < 0.1 * now["w"].data.size


def test_a_large_tensor_that_follows_only_where_it_is_sampled_takes_no_relation() -> None:
    rng = np.random.default_rng(11)
    base, now = large_step(rng)
    follows = now["w"].data.view(np.float32)
    at = places(follows.size)
    other = base["w"].data.view(np.float32) * np.float32(1 + 1e-7)
    other[at] = follows[at]
    now["w"] = Block("float32", now["w"].box, other.view(np.uint8))
    relations = relate(now, base)
    assert relations["w"] == Previous()
