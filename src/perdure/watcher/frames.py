"""What one frame of a stack is: in a collective, loading data, in input or output, in a debugger, in an import.

One table for both that read stacks: `standing` (one live rank) and `stacks` (a whole job's dumps). A frame may be
spelled ``function (file:line)`` as py-spy does, ``File "file", line n in function`` as faulthandler does, or
``file:line function`` as perdure does. A function that is named like a collective is one only in a file of a library
for collectives, in native code, or where no file is told: a program may well call its own helper ``broadcast``.
"""

from __future__ import annotations

import enum
import re

__all__ = ["Kind", "kind_of", "parts_of"]


class Kind(enum.StrEnum):
    """What a frame is in, if it is in one of these."""

    DEBUGGER = "debugger"
    IMPORT = "import"
    COLLECTIVE = "collective"
    DATA = "data"
    IO = "io"


_FRAME = re.compile(
    r"^(?P<f1>[\w.<>~:\[\] ]+?) \((?P<p1>[^()]*?)(?::(?P<n1>\d+))?\)$"
    r"|^File \"(?P<p2>[^\"]+)\", line (?P<n2>\d+)(?:,)? in (?P<f2>.+)$"
    r"|^(?P<p3>\S+?):(?P<n3>\d+) (?P<f3>\S.*)$"
)
_DEBUGGER = re.compile(r"\b(?:pdb|bdb)\.py|\bpudb\b|\bdebugpy\b|\bpydevd|\bipdb\b", re.IGNORECASE)
_IMPORT = re.compile(r"importlib[./]_bootstrap|_find_and_load|<frozen importlib", re.IGNORECASE)
_COLLECTIVE_FILES = re.compile(
    r"torch/distributed/(?!run|launch|elastic|fsdp|checkpoint)|distributed_c10d|deepspeed/(?:comm|runtime/pipe/p2p)"
    r"|megatron/\S*(?:p2p_communication|collectives)|horovod|mpi4py"
    r"|libnccl|libgloo|librccl|libmpi|libucp|jax/\S*multihost"
)
_COLLECTIVE = re.compile(
    r"(?:^|[._:])_?(?P<op>all_?reduce\w*|all_?gather\w*|reduce_?scatter\w*|broadcast\w*|all_?to_?all\w*"
    r"|barrier\w*|monitored_barrier|i?send|i?recv|gather|scatter|reduce"
    r"|batch_isend_irecv|synchronize_irecv|(?:send|recv)_(?:forward|backward)\w*|(?:nccl|gloo|mpi)\w+)(?:$|[_. (])",
    re.IGNORECASE,
)
_NATIVE = re.compile(r"\bProcessGroup(?:NCCL|Gloo|MPI|UCC)?\b|^nccl[A-Z]\w+|\bgloo::")
_DATA = re.compile(
    r"utils/data|data_?loader|_try_get_data|_next_data|_get_data\b|webdataset|tf/data|datasets/|torchdata"
    r"|streaming/|\bfetch\b|fetch\.py|collate|prefetch|__getitem__|multiprocessing/queues\.py"
    r"|\bdatasets?\w*\.py|\b(?:get|load|next)_batch\b",
    re.IGNORECASE,
)
_IO = re.compile(
    r"\b(?:p?read|p?write|readinto|open|fsync|flush|recv_into|urlopen|sendfile|copyfileobj|torch_save|savez?"
    r"|_save|_load|torch_load|safe_open|(?:save|load)_(?:checkpoint|state)\w*|upload|download|get_object"
    r"|put_object|stat|listdir|fdatasync)\b"
    r"|serialization\.py|torch/distributed/checkpoint|botocore|urllib3?/|s3fs|fsspec|http/client|ssl\.py"
    r"|socket\.py|shutil\.py|checkpointing\.py|_?pyio\.py",
    re.IGNORECASE,
)


def parts_of(frame: str) -> tuple[str, str]:
    """The function and the file of a frame, in whichever of the three spellings; all is function in another.

    >>> parts_of("train.py:40 step"), parts_of("step (train.py:40)")
    (('step', 'train.py'), ('step', 'train.py'))
    """
    match = _FRAME.match(frame.strip())
    if match is None:
        return frame.strip(), ""
    for n in "123":
        if match[f"f{n}"]:
            return match[f"f{n}"].strip(), match[f"p{n}"]
    return frame.strip(), ""


def kind_of(function: str, file: str) -> tuple[Kind | None, str]:
    """What a frame is in, and the name of the collective if it is one; None for a program's own work.

    >>> kind_of("broadcast", "torch/distributed/distributed_c10d.py")
    (<Kind.COLLECTIVE: 'collective'>, 'broadcast')
    >>> kind_of("broadcast", "train.py")
    (None, '')
    """
    whole = f"{function} {file}"
    if _DEBUGGER.search(whole):
        return Kind.DEBUGGER, ""
    if _IMPORT.search(whole):
        return Kind.IMPORT, ""
    match = _COLLECTIVE.search(function)
    if match is not None and (not file or _COLLECTIVE_FILES.search(file) or file.endswith((".so", ".cpp"))):
        return Kind.COLLECTIVE, match["op"].lower()
    if (file and _COLLECTIVE_FILES.search(file) and not _DATA.search(file)) or _NATIVE.search(function):
        return Kind.COLLECTIVE, function.lower()
    if _DATA.search(whole):
        return Kind.DATA, ""
    if _IO.search(function) or _IO.search(file):
        return Kind.IO, ""
    return None, ""
