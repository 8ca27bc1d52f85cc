"""`perdure.dcp`: a storage writer and a storage reader for ``torch.distributed.checkpoint``.

>>> import tempfile, torch, torch.distributed.checkpoint as dcp, perdure
>>> folder, state = tempfile.mkdtemp(), {"w": torch.arange(3), "note": "a value"}
>>> _ = dcp.save(state, checkpoint_id="step-7", storage_writer=perdure.dcp.StorageWriter(folder), no_dist=True)
>>> state = {"w": torch.zeros(3, dtype=torch.int64), "note": None}
>>> dcp.load(state, storage_reader=perdure.dcp.StorageReader(folder), no_dist=True)
>>> state
{'w': tensor([0, 1, 2]), 'note': 'a value'}
"""

from perdure.adapters.torch.dcp_reader import StorageReader
from perdure.adapters.torch.dcp_writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
