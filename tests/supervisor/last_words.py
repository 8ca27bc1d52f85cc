"""How real processes end: the last lines of stderr that torch, gloo, NCCL, Python and file systems leave behind."""

# ruff: noqa: E501  (lines as they are)

from __future__ import annotations


def raised(line: str, *, file: str = "train.py", at: int = 41, function: str = "step") -> tuple[str, ...]:
    """The traceback of an exception that nobody caught."""
    return (
        "Traceback (most recent call last):",
        f'  File "{file}", line {at + 20}, in <module>',
        "    main()",
        f'  File "{file}", line {at}, in {function}',
        "    return go(batch)",
        "           ^^^^^^^^^",
        *line.split("\n"),
    )


def of_rank(rank: int, lines: tuple[str, ...]) -> tuple[str, ...]:
    """As torch prints it once there is a process group."""
    return tuple(f"[rank{rank}]: {line}" for line in lines)


GLOO_CLOSED = raised(
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:37121"
)
GLOO_TIMEOUT = raised(
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv "
    "operation to complete"
)
STORE_TIMEOUT = raised(
    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node1, 29500)."
)
STORE_CLIENTS = raised(
    "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."
)
NCCL_REMOTE = raised(
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, remote "
    "process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\nsocketPollConnect: connect returned Connection refused"
)
NCCL_SYSTEM = raised(
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5"
)
NCCL_WATCHDOG = (
    "[rank1]:[E1201 04:12:09.118273644 ProcessGroupNCCL.cpp:688] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=1048576, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] "
    "Watchdog caught collective operation timeout",
)
CUDA_OOM = raised(
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
    "1.13 GiB is free."
)
CUDA_ASSERT = raised(
    "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
)
CUDA_ECC = raised("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")
CUDA_LAUNCH = raised("torch.AcceleratorError: CUDA error: unspecified launch failure")
XID = ("NVRM: Xid (PCI:0000:4e:00): 79, pid=4512, name=python, GPU has fallen off the bus.",)
NO_GPU = raised("RuntimeError: No CUDA GPUs are available")
NO_CUDA = raised("AssertionError: Torch not compiled with CUDA enabled")
HOST_MEMORY = raised(
    "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"
)
WORKER_KILLED = raised("RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. It is possible that")
NFS_STALE = raised("OSError: [Errno 116] Stale file handle: '/mnt/nfs/data/shard-0042.bin'")
LUSTRE_EIO = raised("OSError: [Errno 5] Input/output error: '/lustre/run7/tokens.bin'")
LUSTRE_EVICTED = raised("OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/run7/tokens.bin'")
NFS_TIMEOUT = raised("OSError: [Errno 110] Connection timed out: '/mnt/nfs/data/shard-0042.bin'")
S3_SLOW = raised(
    "botocore.exceptions.ClientError: An error occurred (503) when calling the PutObject operation (reached max retries: 4): "
    "Slow Down"
)
HTTP_429 = raised(
    "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://example.org/data/7"
)
DISK_FULL = raised("OSError: [Errno 28] No space left on device: '/scratch/cache/00017.arrow'")
READ_ONLY = raised("OSError: [Errno 30] Read-only file system: '/scratch/cache/00017.arrow'")
PORT_TAKEN = raised(
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
NO_NAME = raised("socket.gaierror: [Errno -3] Temporary failure in name resolution")
IB_DOWN = raised(
    "RuntimeError: NCCL error: NET/IB: Got completion from peer 10.0.0.2<41231> with status=12 (transport retry counter exceeded)"
)
IMPORT = raised("ModuleNotFoundError: No module named 'flash_attn'")
SYNTAX = ('  File "/home/u/train.py", line 12', "    loss = = 3", "           ^", "SyntaxError: invalid syntax")
NO_SCRIPT = ("/usr/bin/python: can't open file '/home/u/trian.py': [Errno 2] No such file or directory",)
ARGUMENTS = ("usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --lrr 3")
NO_STEP = raised("perdure.errors.BlobMissing: step 500 is not there to restore; steps() lists what is")
SUPERSEDED = raised("perdure.errors.Superseded: epoch 4 owns this run now; this writer has epoch 3 and must stop")
NAN = raised("ValueError: loss is nan at step 318")
NAN_ANOMALY = raised("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.")
NAN_POINT = raised("FloatingPointError: non-finite gradient norm; consider a lower learning rate")
KEY = raised("KeyError: 'labels'")
SHAPE = raised("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 8x1)")
