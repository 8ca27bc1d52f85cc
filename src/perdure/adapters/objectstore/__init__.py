"""Object stores (S3 and what speaks its protocol, Google Cloud Storage, Azure) as a store, through `obstore`."""

from perdure.adapters.objectstore.store import ObjectStore, open_object_store
from perdure.adapters.objectstore.uploads import Upload

__all__ = ["ObjectStore", "Upload", "open_object_store"]
