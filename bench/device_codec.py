"""How fast are codecs on the device, beside a copy of the same tensor on the device, and beside coding on the host?

Figures are GB/s of the tensor's bytes: `of a copy` is the part of the speed of a device-to-device copy in the same run,
`against the host` how many times faster than copying the whole tensor to the host and coding it there on one thread.
Sides take turns; medians, the first turn apart. Needs a GPU, and says so where there is none; --device cpu runs plain
torch there, which shows that the benchmark works and nothing else.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable

import torch

from measure import Stopwatch, arguments, take_turns
from perdure.adapters.torch.device_backend import flat_on
from perdure.adapters.torch.device_codec import backend_of, distances, from_distances, mask_on_device, unmask_on_device
from perdure.adapters.torch.device_digest import device_tile_digests
from perdure.codec import TILE_BYTES, encode

COPY, HOST, WHOLE = "copy on the device", "copy to the host, encode there", "mask_on_device and frame_parts"


def changed_pair(mib: int, changed: float, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A bfloat16 tensor and a base from which about that share of elements differs."""
    torch.manual_seed(0)
    base = torch.randn(mib << 19, device=device).mul_(0.02).to(torch.bfloat16)
    bits = base.view(torch.int16)
    return (bits + (torch.rand(bits.shape, device=device) < changed).to(torch.int16)).view(torch.bfloat16), base


def turns(now: torch.Tensor, base: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is measured; each does all of its work before it returns."""
    backend, (flat, kernels, _) = backend_of(now), flat_on(now, None)
    before, out = flat_on(base, None)[0], torch.empty_like(now)
    coded, apart = mask_on_device(now, base=base).frame(), distances(now, base=base)

    def on_host() -> object:
        new, old = (each.cpu().view(torch.int16).numpy().view("u2") for each in (now, base))
        return encode(new, codec="mask", base=old, dtype="bfloat16")

    return {
        COPY: lambda: out.copy_(now),
        "bits and counts of mask": lambda: kernels.mask_and_counts(flat, before, 2048),
        "digests of the tiles": lambda: device_tile_digests(flat.view(torch.uint8), TILE_BYTES, kernels),
        "mask_on_device": lambda: mask_on_device(now, base=base, backend=backend),
        WHOLE: lambda: mask_on_device(now, base=base, backend=backend).frame_parts(),
        "unmask_on_device": lambda: unmask_on_device(coded, base=base, backend=backend),
        "distances": lambda: distances(now, base=base, backend=backend),
        "from_distances": lambda: from_distances(apart, base=base, backend=backend),
        HOST: on_host,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--mib", type=int, default=1024, help="size of the tensor")
    parser.add_argument("--changed", type=float, default=0.3, help="share of elements that differ from the base")
    parser.add_argument("--device", default="cuda", help="where the tensors lie")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "NOT MEASURED: there is no GPU here that torch can use. Codecs on the device have no figure from this run."
        )
        return
    now, base = changed_pair(options.mib, options.changed, options.device)

    def timed(work: Callable[[], object]) -> Callable[[], dict[str, float]]:
        def turn() -> dict[str, float]:
            watch = Stopwatch()
            work()
            if now.is_cuda:
                torch.cuda.synchronize(now.device)
            return {"s": watch.s()}

        return turn

    measured = take_turns({side: timed(work) for side, work in turns(now, base).items()}, rounds=options.rounds)["s"]
    medians = {side: statistics.median(times.later_s or (times.first_s,)) for side, times in measured.items()}
    name = torch.cuda.get_device_name(now.device) if now.is_cuda else "the CPU: these figures say nothing of a GPU"
    if options.json:
        print(json.dumps({"nbytes": now.nbytes, "changed": options.changed, "device": name, "median_s": medians}))
        return
    print(f"{options.mib} MiB of bfloat16, {options.changed:.0%} changed, {backend_of(now)} on {name}")
    print(f"{'':34} {'GB/s':>9} {'of a copy':>10} {'against the host':>17}")
    for side, median_s in medians.items():
        host = f"{medians[HOST] / median_s:16.2f}x" if side in (WHOLE, HOST) else ""
        print(f"{side:34} {now.nbytes / median_s / 1e9:9.2f} {medians[COPY] / median_s:10.3f} {host}")


if __name__ == "__main__":
    main()
