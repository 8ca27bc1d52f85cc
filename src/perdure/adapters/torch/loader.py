"""Make a plain `DataLoader` resumable: a seeded batch sampler in the place of its own, and an exact position.

The order of an epoch is a function of (seed, epoch, length) alone. The position is the global count of samples that
the loop has consumed, not what workers have prefetched, so it means the same in a world of another size: at position
p the next global batch is the next ``world * batch`` samples of the epoch's order, of which rank r takes its block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from perdure.errors import CallError

__all__ = ["batches_consumed", "is_resumable", "make_resumable", "skip_batches", "watch_draws"]


class _Batches(BatchSampler):
    """The batches of one rank from a position to the end of the epoch."""

    def __init__(self, *, length: int, batch: int, shuffle: bool, drop_last: bool, seed: int, rank: int, world: int):
        self.length, self.batch_size, self.shuffle, self.drop_last = length, batch, shuffle, drop_last
        self.seed, self.rank, self.world = seed, rank, world
        self.epoch = 0
        self.position = 0

    @property
    def stride(self) -> int:
        """Samples that all ranks together consume a batch."""
        return self.batch_size * self.world

    def __len__(self) -> int:
        return self.length // self.stride if self.drop_last else -(-self.length // self.stride)

    @property
    def left(self) -> int:
        """Batches of this epoch from the position on."""
        samples = self.length - self.position
        return samples // self.stride if self.drop_last else -(-samples // self.stride)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.arange(self.length)
        if self.shuffle:
            order = torch.randperm(self.length, generator=_generator(self.seed, self.epoch))
        at = self.position
        while at < self.length:
            block = order[at : at + self.stride]
            if len(block) < self.stride:
                if self.drop_last:
                    return
                each = -(-len(block) // self.world)  # the last batch: equal shares, filled up from the start
                block = torch.cat(
                    [block, order.repeat(-(-self.stride // self.length))[: each * self.world - len(block)]]
                )
            else:
                each = self.batch_size
            yield block[self.rank * each : (self.rank + 1) * each].tolist()
            at += self.stride


def _resumable_class(base: type[DataLoader[Any]]) -> type[DataLoader[Any]]:
    """``base`` with a position: a subclass that an instance of ``base`` can be turned into."""

    def iterate(self: Any) -> Iterator[Any]:
        batches: _Batches = self.batch_sampler
        if self._live is not None:  # iterated before: a new epoch, wherever the last loop broke off
            batches.epoch, batches.position = batches.epoch + 1, 0
        live = self._live = object()
        self.generator.manual_seed(_mix(batches.seed, batches.epoch, batches.position, batches.rank))

        def begin() -> Iterator[Any]:
            return base.__iter__(self)

        return _follow(self, begin(), begin, live)

    def state_dict(self: Any) -> dict[str, int | bool]:
        """Where the loop is: epoch, samples consumed of it, and what the order depends on."""
        batches: _Batches = self.batch_sampler
        return {
            "epoch": batches.epoch,
            "position": batches.position,
            "seed": batches.seed,
            "length": batches.length,
            "shuffle": batches.shuffle,
        }

    def load_state_dict(self: Any, state: dict[str, Any]) -> None:
        """Go on from ``state``; to be called before the loop begins. Another data set is a `CallError`."""
        batches: _Batches = self.batch_sampler
        if (state["length"], state["shuffle"]) != (batches.length, batches.shuffle):
            raise CallError(
                f"the loader's position was saved over {state['length']} samples (shuffle={state['shuffle']}), but its "
                f"data set now has {batches.length} (shuffle={batches.shuffle}); give the same data set",
                key="loader",
            )
        batches.seed, batches.epoch, batches.position = state["seed"], state["epoch"], state["position"]
        self._live = None

    methods = {"__iter__": iterate, "state_dict": state_dict, "load_state_dict": load_state_dict}
    return type(f"Resumable{base.__name__}", (base,), methods)


def _follow(loader: Any, inner: Iterator[Any], begin: Callable[[], Iterator[Any]], live: object) -> Iterator[Any]:
    """Pass on the batches of ``inner`` and count what the loop consumes, while it is the loader's newest iterator.

    ``begin`` makes another at a position that was moved on.
    """
    batches: _Batches = loader.batch_sampler
    while True:
        if loader.before_draw is not None and loader._live is live:
            loader.before_draw()
        if loader._to_skip and loader._live is live:
            n = min(loader._to_skip, batches.left)  # the rest in the next epoch
            loader._to_skip -= n
            batches.position = min(batches.position + n * batches.stride, batches.length)
            loader.generator.manual_seed(_mix(batches.seed, batches.epoch, batches.position, batches.rank))
            inner = begin()
        try:
            batch = next(inner)
        except StopIteration:
            return
        if loader._live is live:
            batches.position = min(batches.position + batches.stride, batches.length)
        yield batch


def watch_draws(loader: Any, before_draw: Callable[[], None]) -> bool:
    """Have ``before_draw`` called before each batch that a loop takes from ``loader``; whether that can be done.

    A loader with a state of its own gets a subclass of its class; nothing else of it changes. Its position must be
    asked for before a draw: at the forward that follows it is already one batch further.
    """
    if is_resumable(loader):
        loader.before_draw = before_draw
        return True
    base = type(loader)
    if not callable(getattr(base, "__iter__", None)):
        return False

    def iterate(self: Any) -> Iterator[Any]:
        return _announced(base.__iter__(self), before_draw)

    try:
        loader.__class__ = type(base.__name__, (base,), {"__iter__": iterate, "__slots__": ()})
    except TypeError:  # a class that cannot be derived from, or whose objects stay what they are
        return False
    return True


def _announced(inner: Iterator[Any], before_draw: Callable[[], None]) -> Iterator[Any]:
    while True:
        before_draw()
        try:
            batch = next(inner)
        except StopIteration:
            return
        yield batch


def skip_batches(loader: Any, n: int) -> None:
    """Leave out the next ``n`` batches of a loader that is resumable: its position moves on, nothing of them is loaded.

    Called before a draw, as by what `watch_draws` calls, on every rank alike. What an epoch has too few of is left out
    at the start of the next.
    """
    loader._to_skip += n


def batches_consumed(loader: Any) -> tuple[int, int, int]:
    """Return where a resumable loader is: its epoch, the batches consumed of it, the batches of a whole one."""
    batches: _Batches = loader.batch_sampler
    return batches.epoch, -(-batches.position // batches.stride), len(batches)


def is_resumable(loader: Any) -> bool:
    """Whether `make_resumable` has been here."""
    return isinstance(getattr(loader, "batch_sampler", None), _Batches)


def make_resumable(loader: DataLoader[Any], *, seed: int, rank: int, world: int) -> DataLoader[Any]:
    """Put a seeded, sharded sampler into ``loader`` and return it; a loader that already has a state is left alone.

    A `DistributedSampler` says by itself which share this rank takes, of how many; else it is ``rank`` of ``world``.
    Raises `CallError` for what cannot be resumed exactly: iterable data sets, loaders without batches or without order,
    samplers of the user's own; those need a loader with ``state_dict`` and ``load_state_dict``.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    sampler = loader.sampler
    if not _is_plain(loader):
        why = "an iterable data set" if isinstance(loader.dataset, IterableDataset) else type(sampler).__name__
        why = "no batches, or batches of its own" if type(loader.batch_sampler) is not BatchSampler else why
        raise CallError(
            f"a {type(loader).__name__} with {why} cannot be resumed exactly; give a loader that "
            "has state_dict() and load_state_dict(), such as torchdata's StatefulDataLoader",
            key="loader",
        )
    shuffle = isinstance(sampler, RandomSampler)
    if isinstance(sampler, DistributedSampler):
        shuffle, rank, world = sampler.shuffle, sampler.rank, sampler.num_replicas
    assert loader.batch_size is not None
    batches = _Batches(
        length=len(loader.dataset),  # type: ignore[arg-type]
        batch=loader.batch_size,
        shuffle=shuffle,
        drop_last=loader.drop_last,
        seed=seed,
        rank=rank,
        world=world,
    )
    # DataLoader refuses to change these after construction, to catch accidents; this is no accident.
    fields = vars(loader)
    fields["batch_sampler"] = batches
    fields["generator"] = torch.Generator()  # workers' seeds come from here, not from the global generator
    fields["before_draw"] = None
    fields["_live"] = None
    fields["_to_skip"] = 0
    loader.__class__ = _resumable_class(type(loader))
    return loader


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Whether the order of ``loader`` is that of one of torch's own samplers over its whole data set."""
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or type(loader.batch_sampler) is not BatchSampler:
        return False
    if loader.batch_size is None or not getattr(loader, "in_order", True):
        return False
    length = len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source) == length
    if type(sampler) is SequentialSampler:
        return len(sampler.data_source) == length
    if type(sampler) is not DistributedSampler or (sampler.drop_last and length % sampler.num_replicas):
        return False
    return len(sampler.dataset) == length  # type: ignore[arg-type]


def _mix(*numbers: int) -> int:
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(_mix(*numbers))
