"""Named bytes that become true: the store, the pack, and the commit. See `docs/spec/format-0.md`."""

from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.lineage import Note, Run
from perdure.store.pack import PackEntry, PackIndex, PackItem, PackPlan, parse_header, plan_pack
from perdure.store.ram import Ram
from perdure.store.records import Commit, Epoch, Marker, PackRef, Part, PartRef
from perdure.store.url import StoreUrl, open_store

__all__ = [
    "Commit",
    "Disk",
    "Epoch",
    "Marker",
    "Note",
    "PackEntry",
    "PackIndex",
    "PackItem",
    "PackPlan",
    "PackRef",
    "Part",
    "PartRef",
    "Ram",
    "Run",
    "Store",
    "StoreUrl",
    "open_store",
    "parse_header",
    "plan_pack",
]
