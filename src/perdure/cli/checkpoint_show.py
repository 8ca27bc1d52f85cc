"""``perdure checkpoint show``: what is in a saved step, tensor by tensor, as it is read: a million take no memory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from heapq import merge
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.state.geometry import Placed
    from perdure.state.part_reader import PartReader
    from perdure.store import Commit, Part

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show",
        help="show the tensors and values of a saved step",
        description="Show what the newest commit holds: tensors with dtype, shape, bytes, how they are cut, how and "
        "why they are stored so; values, meta. Reads indexes, no data. NAMES are names or patterns with *.",
    )
    parser.add_argument("url", metavar="URL")
    parser.add_argument("names", metavar="NAMES", nargs="*", help="only tensors and values of these names")
    parser.add_argument("--step", type=int, metavar="N", help="this step instead of the newest")
    parser.add_argument("--slot", type=int, metavar="N", help="the commit in this slot, on any branch (ls --all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Show."""
    from perdure.state.part_reader import PartReader
    from perdure.store import open_store
    from perdure.upkeep.ledger import read_ledger

    ledger = read_ledger(open_store(args.url))
    commit = ledger.of(args.step, args.slot)
    run = ledger.opened()
    parts = []
    for ref in commit.parts:
        part = run.read_part(ref)
        parts.append((part, PartReader.of(run, ref, part)))
    if args.names and next(chain(_tensors(parts, args.names), _values(parts, args.names)), None) is None:
        raise CallError(
            f"nothing in step {commit.step} is called {' or '.join(args.names)}; leave the names out to see all"
        )
    (_show_json if args.json else _show_text)(commit, parts, args.names)
    return 0


def _show_text(commit: Commit, parts: list[tuple[Part, PartReader]], names: list[str]) -> None:
    from perdure.cli.moments import when
    from perdure.events.facts import size

    print(f"step {commit.step}, slot {commit.slot}, epoch {commit.epoch}, saved {when(commit.created)}")
    index = parts[0][1].index if parts else None
    if index is not None:
        print(f"world {index.world} in {len(parts)} parts, {len(index.layouts)} layouts")
    for key, value in commit.meta.items():
        print(f"meta {key} = {json.dumps(value)}")
    for note, writers in _notes(parts).items():
        print(f"stored by {_few(writers)}: {note}")
    totals: dict[str, list[int]] = {}
    for each in _tensors(parts, names):
        _count(totals, each)
        packs = each["packs"]
        more = f" and {len(packs) - 1} more" if len(packs) > 1 else ""
        shape = "x".join(map(str, each["shape"])) or "scalar"
        where = f"{each['cut']}  {packs[0] + more if packs else 'no pack'}"
        why = each["why"]
        coding = f"  {_few(why)}" if why else "" if each["coding"] == "raw" else f"  {each['coding']}"
        print(f"{each['name']}  {each['dtype']}  {shape}  {size(each['nbytes'])}  {where}{coding}")
        for alias in each["aliases"]:
            print(f"    also called {alias}")
    for value in _values(parts, names):
        print(f"{value['key']} = {_short(json.dumps(value['value']))}")
    for dtype, (count, nbytes) in sorted(totals.items()):
        print(f"total {dtype}: {count} tensors, {size(nbytes)}")


def _show_json(commit: Commit, parts: list[tuple[Part, PartReader]], names: list[str]) -> None:
    """One object, written as it is read."""
    import msgspec

    facts = msgspec.to_builtins(commit)
    del facts["parts"]
    index = parts[0][1].index if parts else None
    facts["world"] = index.world if index else 0
    facts["n_parts"] = len(parts)
    facts["stored"] = _notes(parts)
    facts["layouts"] = msgspec.to_builtins(index.layouts) if index else []
    print(json.dumps(facts)[:-1] + ', "tensors": [')
    totals: dict[str, list[int]] = {}
    first = True
    for each in _tensors(parts, names):
        _count(totals, each)
        print(("" if first else ",\n") + json.dumps(each), end="")
        first = False
    print('], "values": [')
    first = True
    for value in _values(parts, names):
        print(("" if first else ",\n") + json.dumps(value), end="")
        first = False
    told = {dtype: {"tensors": count, "nbytes": nbytes} for dtype, (count, nbytes) in sorted(totals.items())}
    print(f'], "totals": {json.dumps(told)}}}')


def _tensors(parts: list[tuple[Part, PartReader]], names: list[str]) -> Iterator[dict[str, Any]]:
    from perdure.codec.dtypes import nbytes
    from perdure.state.catalogs import Patterns

    chosen = Patterns(names) if names else None
    aliases: dict[str, list[str]] = {}
    for _, reader in parts:
        for alias, name in reader.aliases():
            if alias not in aliases.setdefault(name, []):
                aliases[name].append(alias)
    meant = {name for name, others in aliases.items() if chosen and any(chosen.fit(alias) for alias in others)}

    def wanted(first: str, last: str) -> bool:
        if chosen is None or chosen.may_hold(first, last):
            return True
        return any(first <= name <= last for name in meant | chosen.literal)

    readers = {id(part): reader for part, reader in parts}
    shared = merge(*(_with(part, reader.placed(wanted)) for part, reader in parts), key=lambda each: each[1].name)
    local = (each for part, reader in parts for each in _with(part, reader.placed_locals()))
    for source in (shared, local):
        for name, group in groupby(source, key=lambda each: each[1].key_stem):
            if chosen is not None and name not in meant and not chosen.fit(name):
                continue
            pieces = list(group)
            one = pieces[0][1]
            yield {
                "name": name,
                "dtype": one.dtype,
                "shape": one.shape,
                "nbytes": nbytes(one.dtype, one.shape),
                "cut": _cut([placed for _, placed in pieces]),
                "aliases": aliases.get(name, []) if one.rank is None else [],
                "packs": sorted({_pack(part, number) for part, placed in pieces for number in placed.packs}),
                "coding": _coding([(readers[id(part)], placed) for part, placed in pieces]),
                "why": _why([(readers[id(part)], placed) for part, placed in pieces]),
            }


def _values(parts: list[tuple[Part, PartReader]], names: list[str]) -> Iterator[dict[str, Any]]:
    from perdure.state.catalogs import Patterns

    chosen = Patterns(names) if names else None
    for _, reader in parts:
        for key, rank, value in reader.values():
            name = key if rank is None else f"{key}@rank{rank}"
            if chosen is None or chosen.fit(name):
                yield {"key": name, "value": value}


def _with(part: Part, tensors: Iterator[Placed]) -> Iterator[tuple[Part, Placed]]:
    return ((part, each) for each in tensors)


def _coding(pieces: list[tuple[PartReader, Placed]]) -> str:
    """How the blocks of a tensor are stored, in words: ``raw``, ``coded``, ``coded, as the rounding of w``."""
    from perdure.state.relations import Rounding

    found: set[str] = set()
    for reader, placed in pieces:
        for number, suffix in zip(placed.packs, placed.geometry.suffixes, strict=True):
            if number >= 0:
                found.add("raw")
                continue
            base = reader.base(placed.key_stem + suffix)
            if base is None:
                found.add("coded")
            elif isinstance(base.relation, Rounding):
                found.add(f"coded, as the rounding of {base.relation.of.removesuffix(suffix)}")
            else:
                found.add(f"coded, as what follows from {', '.join(dict.fromkeys(each.key for each in base.sources))}")
    return " and ".join(sorted(found)) or "raw"


def _why(pieces: list[tuple[PartReader, Placed]]) -> list[str]:
    """What their writers say of the blocks of a tensor: why they are stored as they are."""
    notes = (reader.note(placed.key_stem + s) for reader, placed in pieces for s in placed.geometry.suffixes)
    return list(dict.fromkeys(note for note in notes if note is not None))


def _notes(parts: list[tuple[Part, PartReader]]) -> dict[str, list[str]]:
    """What writers say of their parts as a whole -> the writers that say so."""
    notes: dict[str, list[str]] = {}
    for part, reader in parts:
        note = reader.note("")
        if note is not None:
            notes.setdefault(note, []).append(part.writer)
    return notes


def _few(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"


def _pack(part: Part, number: int) -> str:
    return part.packs[number if number >= 0 else -1 - number].name


def _cut(pieces: list[Placed]) -> str:
    """How a tensor is cut, in words: ``4 x rows on ranks 0-3``."""
    ranks = sorted({rank for each in pieces for rank in each.geometry.ranks})
    n = sum(len(each.geometry.boxes) for each in pieces)
    if not ranks:
        return "empty"
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_spans(ranks)}"
    if n == 1:
        return f"whole on {where}"
    grid = pieces[0].geometry.grid
    if grid is None:
        return f"{n} pieces on {where}"
    cuts = [(dim, n_parts) for dim, n_parts in enumerate(grid.parts) if n_parts > 1]
    if len(cuts) > 1:
        return f"{' x '.join(str(n_parts) for n_parts in grid.parts)} blocks on {where}"
    ((dim, n_parts),) = cuts
    what = ("rows", "columns")[dim] if len(grid.parts) <= 2 or dim == 0 else f"of dim {dim}"
    return f"{n_parts} x {what} on {where}"


def _spans(ranks: list[int]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = [str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in spans[:4]]
    return ",".join(shown) + (",..." if len(spans) > 4 else "")


def _count(totals: dict[str, list[int]], tensor: dict[str, Any]) -> None:
    total = totals.setdefault(tensor["dtype"], [0, 0])
    total[0] += 1
    total[1] += tensor["nbytes"]


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
