"""fsspec: the steps of a run as a file system, `perdure://`."""
