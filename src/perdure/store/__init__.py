"""Named bytes that become true: the store, the pack, and the commit. See `docs/spec/format-v1.md`."""

from perdure.store.api import DigestedReads, Store
from perdure.store.digested import read_digested
from perdure.store.disk import Disk
from perdure.store.lineage import Note, Run
from perdure.store.pack import PackEntry, PackIndex, PackItem, PackPlan, parse_header, plan_pack
from perdure.store.ram import Ram
from perdure.store.records import Commit, Epoch, LeafRef, Marker, PackRef, Part, PartRef, Pruned
from perdure.store.url import StoreUrl, open_store

__all__ = [
    "Commit",
    "DigestedReads",
    "Disk",
    "Epoch",
    "LeafRef",
    "Marker",
    "Note",
    "PackEntry",
    "PackIndex",
    "PackItem",
    "PackPlan",
    "PackRef",
    "Part",
    "PartRef",
    "Pruned",
    "Ram",
    "Run",
    "Store",
    "StoreUrl",
    "open_store",
    "parse_header",
    "plan_pack",
    "read_digested",
]
