"""What does the lossy codec `cluster` save on the moments of an optimizer, and what does that cost a resumed training?

A small GPT is trained to step `--at`. Its moments m and v go through each side; then the training goes on for `--more`
steps from the exact state and from the altered ones, with the same data. Sizes are bytes an element, of whole frames;
`relative` is the mean of |x - y| / |x| over elements that are not zero. The update is AdamW's m / (sqrt(v) + eps): the
relative L2 error of the whole vector, and 1 - cosine. `v lost` counts elements of v that became zero and were not.

A resumed curve is compared with the exact one of the same data: the mean of |loss difference| over steps, and the
difference of the loss on held-out text at the end. Two noises to compare with: *rounding*, the exact state with every
master weight moved by one unit in the last place (what another order of additions does), and *data*, the exact state
with other data (no difference of the last losses on held-out text of two orders says more than its standard deviation).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from cluster_sides import SIDES
from cluster_training import Floats, State, Training, update_of
from perdure.codec import decode, encode, encode_parts

Curves = npt.NDArray[np.float64]


def moved_by_one_unit(x: Floats, seed: int) -> Floats:
    """Every number one unit in the last place up or down, by chance."""
    up = np.random.default_rng(seed).integers(0, 2, x.size, dtype=np.int32)
    return (x.view(np.int32) + np.where(x != 0, 2 * up - 1, 0).astype(np.int32)).view(np.float32)


def relative(x: Floats, y: Floats) -> float:
    some = x != 0
    return float(np.mean(np.abs(x[some].astype(np.float64) - y[some]) / np.abs(x[some])))


def table_of_sizes(before: State, state: State) -> dict[str, State]:
    """Print bytes and errors of each side; the states of those that are trained on."""
    update = update_of(state).astype(np.float64)
    copy_and_master = len(encode(state.master, codec="planes", base=before.master)) / state.master.size
    print(f"\n{state.m.size} elements, step {state.step}; master by planes on that of step {before.step}: "
          f"{copy_and_master:.3f} bytes an element")  # fmt: skip
    print(f"  {'':22} {'m':>7} {'v':>7} {'m + v':>7} {'of 14 B':>8} {'relative m':>11} {'relative v':>11}"
          f" {'L2 of update':>13} {'1 - cosine':>11} {'v lost':>8}")  # fmt: skip
    made = {}
    for side in SIDES:
        (m, m_nbytes), (v, v_nbytes) = side.through(state.m), side.through(state.v)
        altered = state.with_moments(m, v)
        with np.errstate(invalid="ignore"):  # v may have become negative
            other = update_of(altered).astype(np.float64)
        error = np.linalg.norm(other - update) / np.linalg.norm(update)
        cosine = 1 - other @ update / (np.linalg.norm(other) * np.linalg.norm(update))
        each = [nbytes / state.m.size for nbytes in (m_nbytes, v_nbytes)]
        ratio = 14 / (copy_and_master + sum(each))
        lost = int(np.count_nonzero((v == 0) & (state.v != 0)))
        print(
            f"  {side.name:22} {each[0]:7.3f} {each[1]:7.3f} {sum(each):7.3f} {ratio:7.2f}x"
            f" {relative(state.m, m):11.2e} {relative(state.v, v):11.2e} {error:13.2e} {abs(cosine):11.1e} {lost:8}"
        )
        if side.resumed:
            made[side.name] = altered
    print("  of 14 B: copy (2) + master (4) + m (4) + v (4), where the copy is the master rounded and costs nothing")
    return made


def table_of_curves(
    training: Training, state: State, altered: Mapping[str, State], *, more: int, orders: int, all_orders: int
) -> None:
    """Print how far each resumed curve is from the exact one with the same data."""

    def curves(name: str, number: int, state_of: Callable[[int], State]) -> tuple[Curves, Curves]:
        losses, last = [], []
        for order in range(number):
            training.resume(state_of(order))
            training.order(1 + order)
            losses.append(training.run(more))
            last.append(training.held_out_loss())
        print(f"  ({name})", end="", flush=True)
        return np.array(losses), np.array(last)

    print(f"\nresumed for {more} steps: {all_orders} orders of the data from the exact state, {orders} from the others")
    losses, last = curves("exact", all_orders, lambda _: state)
    rounding = {"rounding": lambda order: State(state.step, moved_by_one_unit(state.master, order), state.m, state.v)}
    found = {name: curves(name, orders, lambda _, s=s: s) for name, s in altered.items()}  # type: ignore[misc]
    found |= {name: curves(name, orders, state_of) for name, state_of in rounding.items()}
    spread = float(np.std(last, ddof=1))
    pairs = [np.mean(np.abs(losses[i] - losses[j])) for i in range(all_orders) for j in range(i)]
    print(f"\n  {'':22} {'mean |loss diff|':>17} {'last quarter':>13} {'held-out diff':>14} {'of data noise':>14}")
    for name, (theirs, their_last) in found.items():
        gap = np.abs(theirs - losses[:orders])
        held = float(np.mean(their_last - last[:orders]))
        worst = float(np.max(np.abs(their_last - last[:orders])))
        late = gap[:, -(more // 4) :].mean()
        print(f"  {name:22} {gap.mean():17.2e} {late:13.2e} {held:+14.2e} {worst / spread:13.3f}x")
    print(f"  {'data':22} {np.mean(pairs):17.2e} {'':13} {spread:14.2e} {1:13.3f}x")
    print(
        f"  held-out: the mean over orders; in the row of data the standard deviation (their mean is {last.mean():.3f})"
    )
    print("  of data noise: the largest |held-out difference| of an order, in standard deviations of the data noise")


def table_of_speeds(x: Floats, rounds: int) -> None:
    """Print the speed of whole frames for one thread beside a memcpy, best of all turns.

    Seconds are those that the thread was on a processor, so that what else the machine does counts little.
    """
    x = np.resize(x, 4 << 20)
    copy, out = np.empty_like(x), np.empty_like(x)
    best: dict[str, float] = {}

    def turn(name: str, work: Callable[[], object]) -> None:
        start = time.thread_time()
        work()
        best[name] = min(best.get(name, 9e9), time.thread_time() - start)

    frame = encode(x, codec="cluster")
    for _ in range(rounds):
        turn("memcpy", lambda: np.copyto(copy, x))
        turn("encode", lambda: encode_parts(x, codec="cluster"))
        turn("decode", lambda: decode(frame, out=out))
    print(f"\nframes of {x.nbytes >> 20} MiB of m, one thread, best of {rounds}")
    for name, taken in best.items():
        print(f"  {name:10} {x.nbytes / 1e9 / taken:7.2f} GB/s   {best['memcpy'] / taken:6.3f} of a memcpy")
    both = best["encode"] + best["decode"]
    print(f"  {'both':10} {x.nbytes / 1e9 / both:7.2f} GB/s   {best['memcpy'] / both:6.3f} of a memcpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=6e-4, help="the highest learning rate")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole schedule")
    parser.add_argument("--at", type=int, default=190, help="the step that is resumed")
    parser.add_argument("--more", type=int, default=100, help="steps that are made from there")
    parser.add_argument("--orders", type=int, default=2, help="orders of the data for each side")
    parser.add_argument("--all-orders", type=int, default=4, help="orders for the exact state")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--batch", type=int, default=4, help="sequences of 128 bytes in a step")
    parser.add_argument("--threads", type=int, default=1, help="threads of the training")
    parser.add_argument("--rounds", type=int, default=30, help="turns of the speeds")
    options = parser.parse_args()
    if options.at <= 10 or not 2 <= options.orders <= options.all_orders:
        parser.error("--at must be above 10, --orders from 2 to --all-orders")
    training = Training(
        seed=options.seed, lr=options.lr, steps=options.steps, layers=options.layers, width=options.width,
        batch=options.batch, threads=options.threads,
    )  # fmt: skip
    losses = training.run(options.at - 10)
    before = training.state()
    losses = np.append(losses, training.run(10))
    state = training.state()
    print(f"seed {options.seed}, lr {options.lr}, {options.steps} steps; loss {losses[:10].mean():.3f} at first,"
          f" {losses[-10:].mean():.3f} at step {state.step}")  # fmt: skip
    altered = table_of_sizes(before, state)
    table_of_speeds(state.m, options.rounds)
    table_of_curves(training, state, altered, more=options.more, orders=options.orders, all_orders=options.all_orders)


if __name__ == "__main__":
    main()
