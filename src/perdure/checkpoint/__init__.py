"""The checkpoint engine: memory first, disk behind (TRANSOM's TCE). See `checkpointer` and `agent`."""
