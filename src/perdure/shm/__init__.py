"""Memory that processes of one node share, and copying into it."""

from perdure.shm.copy import copy_many
from perdure.shm.segment import Segment

__all__ = ["Segment", "copy_many"]
