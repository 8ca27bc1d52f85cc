"""What the last words of a rank mean: whose fault it is, and whether trying again can help. Pure.

A table, read from the top; the first row whose pattern is found in what was said about the end counts. What no row
knows is a failure of the program, which its repetition will show.

| means | what follows |
|---|---|
| HOPELESS | the job ends at once |
| OWN | one more try; the same place and words again end the job |
| PASSING | tried again with a back-off, while the budget lasts |
| UNCLEAR | program or machine: again on the same node, the node is replaced; again on another one, the job ends |
| HARDWARE | the node is replaced at once |
| VALUE | the numbers are bad: twice at the same step, it is the data of that step |
"""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass

from perdure.errors import CallError, IntegrityError, NeedsPerson, TryAgain
from perdure.supervisor.causes import OWN_FAULT, Death, LastWords, blames_a_peer

__all__ = ["Kind", "Means", "Reading", "read"]


class Kind(enum.Enum):
    """Whose failure it is."""

    USER = "user"
    PROCESS = "process"
    NODE = "node"
    NETWORK = "network"
    STORAGE = "storage"
    DATA = "data"
    UNKNOWN = "unknown"


class Means(enum.Enum):
    """What a symptom means for the next try."""

    HOPELESS = "hopeless"
    OWN = "own"
    PASSING = "passing"
    UNCLEAR = "unclear"
    HARDWARE = "hardware"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one death means. ``says`` goes on from "rank 3"; ``at_node`` if its node may be what is at fault.

    ``again`` is the kind once it has happened a second time, if that is another one.
    """

    kind: Kind
    means: Means
    says: str
    at_node: bool = False
    again: Kind | None = None


def _row(
    kind: Kind, means: Means, says: str, pattern: str, *, at_node: bool = False, again: Kind | None = None
) -> tuple[re.Pattern[str], Reading]:
    return re.compile(pattern, re.I), Reading(kind, means, says, at_node, again)


_TABLE: tuple[tuple[re.Pattern[str], Reading], ...] = (
    # Machines. Xid numbers are NVIDIA's: contained and uncontained memory faults, NVLink, a GPU that left the bus.
    _row(
        Kind.NODE, Means.HARDWARE, "lost its GPU to a fault of the hardware",
        r"uncorrectable ECC|ECC error|fallen off the bus|Xid \(.*?\): ?(48|62|63|64|74|79|92|94|95|119|120|140)\b"
        r"|GPU is lost|row remapping failure|uncorrectable NVLink|hardware stack error",
        at_node=True,
    ),
    _row(
        Kind.USER, Means.OWN, "failed an assertion on the GPU (an index out of range, as a rule)",
        r"device-side assert",
    ),
    _row(
        Kind.PROCESS, Means.OWN, "found too little free memory on its GPU",
        r"CUDA out of memory|HIP out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        again=Kind.USER,
    ),
    _row(
        Kind.USER, Means.HOPELESS, "has a torch without CUDA",
        r"not compiled with CUDA|Found no NVIDIA driver",
    ),
    _row(
        Kind.NODE, Means.UNCLEAR, "cannot use its GPU",
        r"no CUDA-capable device|No CUDA GPUs are available|devices? (is|are) busy or unavailable"
        r"|system not yet initialized"
        r"|CUDA driver (initialization failed|error: unknown)|Driver/library version mismatch|NVML: ",
        at_node=True,
    ),
    _row(
        Kind.PROCESS, Means.UNCLEAR, "failed on its GPU",
        r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction was encountered"
        r"|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)|CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)",
        at_node=True,
    ),
    _row(
        Kind.PROCESS, Means.UNCLEAR, "found too little memory on its machine",
        r"MemoryError|can't allocate memory|cannot allocate memory|\[Errno 12\]|out of shared memory|bad_alloc"
        r"|insufficient shared memory|DataLoader worker \(pid.*?\) (is killed|exited unexpectedly)",
        at_node=True,
    ),
    # Stores and file systems.
    _row(
        Kind.STORAGE, Means.HOPELESS, "asked for a step that is not there",
        r"is not there to restore",
    ),
    _row(
        Kind.STORAGE, Means.OWN, "found no room in a file system",
        r"\[Errno (28|122)\]|No space left on device|Disk quota exceeded|file system is full",
    ),
    _row(
        Kind.NODE, Means.UNCLEAR, "found a file system that can only be read",
        r"\[Errno 30\]|Read-only file system",
        at_node=True,
    ),
    _row(
        Kind.STORAGE, Means.PASSING, "met a fault of a file system",
        r"\[Errno (5|52|107|108|112|116|121)\]|Input/output error|Stale (NFS )?file handle|LustreError"
        r"|transport endpoint|\[Errno 110\].*?: ['\"]|server .{1,80} not responding|Remote I/O error",
        at_node=True,
    ),
    _row(
        Kind.STORAGE, Means.PASSING, "was put off by a store",
        r"\b(429|500|502|503|504)\b.{0,100}(Too Many|Slow ?Down|Unavailable|Server Error|Gateway|Timeout)"
        r"|(status|status[ _]code|HTTP)\W{0,3}\b(429|500|502|503|504)\b|SlowDown|reduce your request rate"
        r"|ServiceUnavailable|Too Many Requests|RequestTime(out|TooSkewed)|EndpointConnectionError"
        r"|ReadTimeout|ConnectTimeout|IncompleteRead|InternalError\b.{0,60}(S3|encountered)",
    ),
    # Networks; what only says that another rank is gone has been sorted out before.
    _row(
        Kind.NETWORK, Means.PASSING, "lost its network card",
        r"async event\b.{0,20}(port error|fatal|down)|NET/IB|ibv_\w+ failed|transport retry counter"
        r"|\bIBV_WC_|link (is )?down",
        at_node=True,
    ),
    _row(
        Kind.NETWORK, Means.PASSING, "met a fault of the network",
        r"NCCL error|nccl\w*Error|DistNetworkError|DistStoreError|Address already in use|EADDRINUSE"
        r"|\[Errno (98|101|104|110|111|113)\]|No route to host|Network is unreachable|name resolution"
        r"|Name or service not known|ConnectionError|Max retries exceeded",
    ),
    # The program.
    _row(
        Kind.USER, Means.HOPELESS, "cannot start: its program is not whole",
        r"^(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)\b|can't open file|No module named"
        r"|error while loading shared libraries|unrecognized arguments|the following arguments are required"
        r"|: error: (argument|invalid|ambiguous)",
    ),
    _row(
        Kind.DATA, Means.VALUE, "met numbers that are not finite",
        r"^FloatingPointError|returned nan values"
        r"|\b(loss|grad\w*|norm|logits|weights?|values?|activations?)\b.{0,40}(?<!\w)"
        r"(nan|nans|inf|infinite|non-?finite|not finite)(?!\w)|(?<!\w)(nan|nans|inf|infinite|non-?finite)(?!\w).{0,40}"
        r"\b(loss|grad\w*|norm|logits|weights?|values?|activations?|detected|found)\b",
    ),
)  # fmt: skip

_NOT_RUN = frozenset({126, 127})  # a shell's: cannot be executed, is not there
_ABRUPT = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


def read(death: Death, *, out_of_memory: bool = False) -> Reading:
    """Return what ``death`` means; ``out_of_memory`` if its node's kernel killed for memory since the attempt began."""
    number = death.by_signal
    if death.code in (CallError.exit_code, NeedsPerson.exit_code):
        return Reading(Kind.USER, Means.HOPELESS, "failed, and its exit code says that a restart cannot help")
    if number == signal.SIGKILL and out_of_memory:
        return Reading(Kind.PROCESS, Means.UNCLEAR, "was killed by the kernel because memory ran out", True)
    if number == signal.SIGKILL or number in _ABRUPT:
        return Reading(Kind.PROCESS, Means.PASSING, "was killed from outside", True)
    if death.code in _NOT_RUN and number is None:
        return Reading(Kind.USER, Means.HOPELESS, "cannot be started")
    if blames_a_peer(death):
        return Reading(Kind.NETWORK, Means.PASSING, "lost the connection to another rank")
    words = LastWords.of(death.tail)
    about = words.text if words.error else "\n".join(words.lines[-3:])
    found = next((reading for pattern, reading in _TABLE if pattern.search(about)), None)
    if death.code == TryAgain.exit_code:
        kind = found.kind if found is not None and found.means is Means.PASSING else Kind.UNKNOWN
        return Reading(kind, Means.PASSING, "asks to be tried again")
    if found is not None:
        return found
    if words.error == "KeyboardInterrupt":
        return Reading(Kind.PROCESS, Means.PASSING, "was interrupted")
    if number is not None and number not in OWN_FAULT:
        return Reading(Kind.PROCESS, Means.PASSING, "was killed from outside", True)
    if number is not None:
        return Reading(Kind.PROCESS, Means.UNCLEAR, "crashed", True)
    if not words.lines:
        return Reading(Kind.UNKNOWN, Means.PASSING, "ended without a word")
    if death.code == IntegrityError.exit_code:
        return Reading(Kind.STORAGE, Means.OWN, "could not use what is stored")
    return Reading(Kind.USER, Means.OWN, "failed")
