"""Where the state of Llama-70B lies on many ranks: parameters in bf16, master weights and both moments in fp32.

Three forms. ``zero1``: parameters are replicated over the data-parallel axis, and what the optimizer has lies in flat
buffers that this axis cuts, as in Megatron. ``zero1 stored``: the same with one copy of each parameter, as in a store
that one rank wrote it to. ``sharded``: the data-parallel axis cuts every tensor, as FSDP does.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.layout import ByHead, ByLayer, Cut, Even, Fused, Layout, Mesh, Rule, TensorLayout, cut_tensor, flat_cut

__all__ = ["FORMS", "LAYERS", "llama", "tensors"]

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, DP = 80, 8192, 64, 8, 28672, 128256, 156
STATES = {"param": "bfloat16", "master": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
FORMS = ("zero1", "zero1 stored", "sharded")


def tensors(*, fused: bool = False) -> Iterator[tuple[str, int | None, tuple[int, ...], tuple[Cut, ...]]]:
    """Each tensor: its name, its layer (-1 for those before the first, None after the last), its shape, its cuts."""
    head = HIDDEN // HEADS
    rows, kv, columns = Cut("tp", 0, Even()), Cut("tp", 0, ByHead(KV_HEADS)), Cut("tp", 1, Even())
    yield "embed", -1, (VOCAB, HIDDEN), (rows,)
    for layer in range(LAYERS):
        at = f"layers.{layer:02}"
        if fused:
            qkv: tuple[tuple[int, Rule], ...] = tuple((n * head, ByHead(n)) for n in (HEADS, KV_HEADS, KV_HEADS))
            width = (HEADS + 2 * KV_HEADS) * head
            yield f"{at}.qkv", layer, (width, HIDDEN), (Cut("tp", 0, Fused(qkv)),)
            yield f"{at}.gate_up", layer, (2 * FFN, HIDDEN), (Cut("tp", 0, Fused(((FFN, Even()), (FFN, Even())))),)
        else:
            yield f"{at}.q", layer, (HEADS * head, HIDDEN), (rows,)
            yield f"{at}.k", layer, (KV_HEADS * head, HIDDEN), (kv,)
            yield f"{at}.v", layer, (KV_HEADS * head, HIDDEN), (kv,)
            yield f"{at}.gate", layer, (FFN, HIDDEN), (rows,)
            yield f"{at}.up", layer, (FFN, HIDDEN), (rows,)
        yield f"{at}.o", layer, (HIDDEN, HIDDEN), (columns,)
        yield f"{at}.down", layer, (HIDDEN, FFN), (columns,)
        yield f"{at}.norm1", layer, (HIDDEN,), ()
        yield f"{at}.norm2", layer, (HIDDEN,), ()
    yield "norm", None, (HIDDEN,), ()
    yield "head", None, (VOCAB, HIDDEN), (rows,)


def llama(tp: int, pp: int, *, form: str, fused: bool = False, dp: int = DP) -> Layout:
    """Where the state lies on ``tp`` x ``pp`` x ``dp`` ranks."""
    mesh = Mesh((("pp", pp), ("dp", dp), ("tp", tp)))
    stages = ByLayer(LAYERS).stages(pp)
    of_stage: dict[int, dict[str, tuple[tuple[int, ...], tuple[Cut, ...]]]] = {}
    for name, layer, shape, cuts in tensors(fused=fused):
        stage = pp - 1 if layer is None else 0 if layer < 0 else stages[layer]
        of_stage.setdefault(stage, {})[name] = (shape, cuts)
    found: dict[str, TensorLayout] = {}
    for stage, those in of_stage.items():
        at = {"pp": stage}
        for state, dtype in STATES.items():
            if form == "sharded" or state == "param":
                for name, (shape, cuts) in those.items():
                    over = (Cut("dp", 0, Even()),) if form == "sharded" else ()
                    once = {"dp": 0} if form == "zero1 stored" else {}
                    found[f"{state}.{name}"] = cut_tensor(
                        shape, mesh=mesh, cuts=(*cuts, *over), dtype=dtype, at={**at, **once}
                    )
            else:
                flat = flat_cut(
                    {name: shape for name, (shape, _) in those.items()},
                    mesh=mesh,
                    cuts={name: cuts for name, (_, cuts) in those.items()},
                    along="dp",
                    dtype=dtype,
                    at=at,
                )
                found |= {f"{state}.{name}": tensor for name, tensor in flat.items()}
    return Layout(found)
