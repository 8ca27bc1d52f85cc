"""Excerpts in the wording of real tools, invented for these tests: every label in several wordings, and healthy logs."""
# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.watcher.labels import Label
from perdure.watcher.logs.diagnose import diagnose
from perdure.watcher.logs.reading import lines_of, read_log

NODE_EVICT, NODE_WARN, NODE_RESTART = ("node", "evict"), ("node", "warn"), ("node", "restart")
USER_STOP, INFRA_RESTART, PASSES = ("user", "stop_user"), ("infra", "restart"), ("transient", "restart")

# fmt: off
CASES: list[tuple[str, tuple[str, str], str]] = [
    ("hw.gpu_ecc", NODE_EVICT, """\
[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
[rank5]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
[rank5]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1
[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error"""),
    ("hw.gpu_ecc", NODE_EVICT, """\
Jan 12 03:14:07 dgx-021 kernel: NVRM: Xid (PCI:0000:87:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU
Jan 12 03:14:08 dgx-021 kernel: NVRM: Xid (PCI:0000:87:00): 45, pid=22211, name=python3, Ch 00000008"""),
    ("hw.gpu_ecc", NODE_EVICT, "2025-03-01T10:00:00+00:00 n17 dcgm-monitor: GPU 3: Row remapping failure: Yes, pending: Yes"),
    ("hw.gpu_ecc_contained", NODE_RESTART, """\
[1987654.120000] NVRM: Xid (PCI:0000:0f:00): 94, pid=7711, name=python, Contained: SM (0x1). RST: No, D-RST: No
[1987654.130000] NVRM: Xid (PCI:0000:0f:00): 43, pid=7711, name=python, Ch 00000010"""),
    ("hw.gpu_off_bus", NODE_EVICT, """\
Unable to determine the device handle for GPU4: 0000:B7:00.0: Unknown Error"""),
    ("hw.gpu_off_bus", NODE_EVICT, """\
kernel: NVRM: GPU at PCI:0000:b7:00: GPU-5b1c9d6e-0000-1111-2222-333344445555
kernel: NVRM: Xid (PCI:0000:b7:00): 79, pid=4122, name=python, GPU has fallen off the bus."""),
    ("hw.gpu_gsp", NODE_EVICT, """\
[Tue Mar  4 11:22:33 2025] NVRM: Xid (PCI:0000:1b:00): 120, pid=0, name=, GSP task exception: 0x5 (crash)
[Tue Mar  4 11:22:35 2025] NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"""),
    ("hw.nvlink", NODE_EVICT, """\
node12 kernel: [88011.42] NVRM: Xid (PCI:0000:4e:00): 74, pid=9001, name=python3, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"""),
    ("hw.nvlink", NODE_EVICT, """\
nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 51 LTSSM Fault Up
nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 51 Sub-engine instance 00"""),
    ("hw.nvlink_nonfatal", NODE_WARN, "nvidia-nvswitch1: SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
    ("hw.nvlink_nonfatal", NODE_WARN, "kernel: NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 07 (0x00000005 0x00000000)"),
    ("hw.pcie", NODE_EVICT, """\
pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error message received from 0000:17:00.0
nvidia 0000:17:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"""),
    ("hw.pcie", NODE_EVICT, "GPU 6 (0000:CB:00.0): PCIe link degraded: current width x4, maximum width x16"),
    ("hw.gpu_other", NODE_EVICT, "kernel: NVRM: Xid (PCI:0000:65:00): 62, pid=1201, name=python, 2a45(4cc8) 00000000 00000000"),
    ("hw.gpu_other", NODE_EVICT, """\
[rank3]: RuntimeError: CUDA error: unknown error
[rank3]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""),
    ("hw.thermal", NODE_EVICT, """\
node-9: Clocks Throttle Reasons: HW Thermal Slowdown : Active
node-9: GPU 2 temperature 91 C, SM clock 1980 MHz -> 705 MHz"""),
    ("hw.thermal", NODE_EVICT, "kernel: mce: CPU17: Package temperature above threshold, cpu clock throttled (total events = 311)"),
    ("hw.nic_link", NODE_EVICT, """\
trn-44:8122:8390 [6] NCCL WARN NET/IB : mlx5_6:1 Got async event : port error
trn-44:8122:8400 [6] NCCL INFO NET/IB : Using interface"""),
    ("hw.nic_link", NODE_EVICT, """\
iteration 4000/ 90000 | lm loss: 2.31
Feb 02 10:10:10 gpu33 kernel: mlx5_core 0000:5e:00.0 ib2: Link down
iteration 4001/ 90000 | lm loss: 2.30"""),
    ("hw.host", NODE_EVICT, """\
[  811.119] mce: [Hardware Error]: Machine check events logged
[  811.120] EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0"""),
    ("hw.host", NODE_EVICT, """\
slurmstepd: error: *** STEP 88123.0 ON n041 CANCELLED AT 2025-05-05T05:05:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: error: Node failure on n043"""),
    ("hw.host", NODE_EVICT, "watchdog: BUG: soft lockup - CPU#44 stuck for 26s! [python3:110022]"),
    ("hw.straggler", NODE_EVICT, "\n".join(
        f"rank {r}: forward-backward compute time {1540.0 if r == 11 else 1201.0 + r} ms" for r in range(16))),
    ("hw.straggler", NODE_WARN, "\n".join(
        f"step {i} | step_time: {(2.0 if i < 20 else 2.13) + (i % 3) * 0.002:.3f} | loss: 2.4" for i in range(40))),
    ("hw.sdc", NODE_EVICT, """\
step 20500: parameter checksums differ across data parallel replicas: rank 12 has 0x91ab, 15 others have 0x44c0"""),
    ("hw.sdc", NODE_EVICT, "ERROR: Parameter hashes not matching across DP replicas at iteration 3100 (rank 40)"),
    ("hw.suspect", NODE_EVICT, """\
attempt 1: collective timed out, rank on node gpu-88 did not arrive
attempt 2: collective timed out, same node gpu-88 did not arrive for the second time"""),
    ("infra.host_oom", USER_STOP, """\
[ 5501.2] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[ 5501.3] Memory cgroup out of memory: Killed process 5120 (python3) total-vm:310001kB, anon-rss:200000kB"""),
    ("infra.host_oom", USER_STOP, """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4001)
  traceback : Signal 9 (SIGKILL) received by PID 4001"""),
    ("infra.host_oom", USER_STOP, "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137"),
    ("infra.shm", USER_STOP, """\
RuntimeError: unable to allocate shared memory(shm) for file </torch_4321_998_12>: No space left on device (28)"""),
    ("infra.shm", USER_STOP, "node-2:77:91 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xa91kq (size 9637888), error: No space left on device (28)"),
    ("infra.disk_full", USER_STOP, "OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt/step_500/model.safetensors'"),
    ("infra.disk_full", USER_STOP, """\
RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1088 vs 982
During handling of the above exception, another exception occurred:
RuntimeError: [enforce fail at inline_container.cc:424] . PytorchStreamWriter failed writing file data/81: file write failed"""),
    ("infra.net_config", USER_STOP, "worker-1:411:411 [0] NCCL WARN Bootstrap : no socket interface found"),
    ("infra.net_config", USER_STOP, "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth7"),
    ("infra.net_config", USER_STOP, "socket.gaierror: [Errno -2] Name or service not known"),
    ("infra.net_config", USER_STOP, "[W socket.cpp:697] [c10d] The client socket has failed to connect to [master.cluster]:29500 (errno: 113 - No route to host)."),
    ("infra.rdzv", INFRA_RESTART, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    ("infra.rdzv", INFRA_RESTART, """\
[E socket.cpp:922] [c10d] The client socket has timed out after 300s while trying to connect to (10.1.1.4, 29400).
torch.distributed.DistNetworkError: The client socket has timed out after 300s while trying to connect to (10.1.1.4, 29400)."""),
    ("infra.rdzv", INFRA_RESTART, "[c10d] The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    ("infra.driver", NODE_EVICT, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."),
    ("infra.driver", ("infra", "evict"), "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver."),
    ("infra.storage", INFRA_RESTART, "LustreError: 11-0: scratch-OST0011-osc: operation ost_write to node 10.0.2.2@o2ib failed: rc = -107"),
    ("infra.storage", PASSES, "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: \"https://bucket.s3.amazonaws.com/shard-0001.tar\""),
    ("infra.storage", PASSES, "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/api/datasets/x"),
    ("infra.sched", ("infra", "restart"), "slurmstepd: error: *** JOB 771 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***"),
    ("infra.sched", ("user", "restart"), "=>> PBS: job killed: walltime 86437 exceeded limit 86400"),
    ("infra.clock", ("infra", "warn"), "chronyd[801]: System clock wrong by -3612.441 seconds\nchronyd[801]: System clock was stepped by -3612.441 seconds"),
    ("sw.user_code", USER_STOP, """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 88, in <module>
[rank0]:     main()
[rank0]: TypeError: forward() got an unexpected keyword argument 'attention_msk'
[rank1]: TypeError: forward() got an unexpected keyword argument 'attention_msk'"""),
    ("sw.user_code", USER_STOP, "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [12,0,0], thread: [33,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side assert triggered"),
    ("sw.user_code", USER_STOP, "hydra.errors.ConfigCompositionException: Could not override 'model.hiden_size'."),
    ("sw.user_code", ("data", "stop_user"), "RuntimeError: Caught UnidentifiedImageError in DataLoader worker process 3.\nPIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f0>"),
    ("sw.gpu_oom", USER_STOP, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.62 GiB is free. Including non-PyTorch memory, this process has 77.48 GiB memory in use."),
    ("sw.gpu_oom", USER_STOP, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
    ("sw.stale_process", INFRA_RESTART, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 79.11 GiB of which 120.00 MiB is free. Process 99120 has 70.31 GiB memory in use. Including non-PyTorch memory, this process has 8.60 GiB memory in use."),
    ("sw.stale_process", INFRA_RESTART, "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"),
    ("sw.desync", USER_STOP, "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=41, OpType=ALLREDUCE, TensorShape=[128]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=41, OpType=BROADCAST, TensorShape=[128])."),
    ("sw.desync", USER_STOP, """\
[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=981, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600041 milliseconds before timing out.
[rank1]:[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=981, OpType=ALLGATHER, NumelIn=512, NumelOut=1024, Timeout(ms)=600000) ran for 600044 milliseconds before timing out."""),
    ("sw.rank_skew", USER_STOP, """\
Tokenizing dataset on rank 0:  62%|######2   | 620000/1000000 [29:58<18:21]
[E ProcessGroupNCCL.cpp:607] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=BARRIER, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800033 milliseconds before timing out."""),
    ("sw.rank_skew", USER_STOP, "RuntimeError: Rank 0 failed to pass monitoredBarrier in 1800000 ms"),
    ("sw.dataloader", ("user", "restart"), "RuntimeError: DataLoader worker (pid(s) 3312, 3313) exited unexpectedly"),
    ("sw.dataloader", ("user", "restart"), "RuntimeError: DataLoader timed out after 900 seconds"),
    ("sw.lib_bug", USER_STOP, "[rank2]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n[rank2]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
    ("sw.lib_bug", USER_STOP, "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f01 (most recent call first):\n  File \"/opt/lib/attn.py\", line 12 in forward"),
    ("sw.contention", ("infra", "warn"), "another process (pid 5512, mprime) is using 780% CPU on node gpu-7"),
    ("sw.ckpt_corrupt", ("infra", "rollback"), "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ("sw.ckpt_corrupt", ("infra", "rollback"), "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
    ("sw.ckpt_corrupt", ("infra", "rollback"), "Loading checkpoint from step_9000\n_pickle.UnpicklingError: pickle data was truncated"),
    ("train.nan", ("data", "rollback"), "\n".join(f"step {i}: train loss {'nan' if i > 6 else 2.2 - i / 100}" for i in range(12))),
    ("train.nan", ("data", "rollback"), "RuntimeError: found NaN in local forward loss calculation. Device: 3, node: gpu-1"),
    ("train.divergence", USER_STOP, "\n".join(f"{{'loss': {2.5 + (i > 30) * (i - 30) * 0.4 + i % 3 / 100:.3f}, 'grad_norm': 1.2}}" for i in range(50))),
    ("train.fp16_scale", USER_STOP, "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
    ("train.fp16_scale", USER_STOP, "\n".join(f"iteration {i} | lm loss: 3.1 | loss scale: {2.0 ** (8 - i)}" for i in range(12))),
    ("train.spike_recovered", ("data", "warn"), "\n".join(f"iter {i} loss: {5.1 if i == 30 else 3.9 if i == 31 else 2.1 + i % 4 / 100:.3f}" for i in range(60))),
    ("train.bad_resume", ("user", "rollback"), "\n".join(
        [f"step {i} loss: {2.10 + i % 3 / 100:.3f}" for i in range(100, 120)]
        + ["resuming from checkpoint step_120"]
        + [f"step {i} loss: {2.61 - (i - 120) / 100:.3f}" for i in range(120, 130)])),
    ("train.metric_lost", ("user", "warn"), "wandb: Network error (ConnectionError), entering retry loop.\nno metrics received from rank 3 for 600 s"),
    ("transient.unknown", PASSES, """\
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.8]:33112
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.9]:20112"""),
    ("transient.unknown", PASSES, "[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."),
]

HEALTHY = [
    "\n".join(f"iteration {i}/1000 | elapsed time per iteration (ms): {1000 + i % 5} | lm loss: {3 - i / 500:.4f} | loss scale: 1.0 | number of nan iterations: 0" for i in range(100)),
    "W0101 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n[W socket.cpp:436] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).\nepoch 1 done, loss 0.41",
    "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/x.py:12: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.\ntraining finished successfully",
    "[node1:00123] PMIX ERROR: NO-PERMISSIONS in file dstore_base.c at line 237\nstep 10 loss: 1.0\nstep 11 loss: 0.99",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648\nstep 1 loss: 9.1\nstep 2 loss: 8.7",
    "val_error: 0.1234\neval error rate 3.2%\nbest so far, saving checkpoint to /ckpt/7\ncheckpoint saved in 3.1 s\nhealth check passed on all 64 nodes",
    "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\nNCCL INFO Connected all rings\nNCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
    "\n".join(f"step {i} loss: {10 * 0.98**i + (i % 7) / 50:.3f} step_time: {(3.0 if i == 40 else 1.0) + i % 4 / 100:.2f}" for i in range(120)),
    "",
]
# fmt: on


@pytest.mark.parametrize(("label", "who_what", "text"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_an_excerpt_gives_its_label_owner_and_action(label: str, who_what: tuple[str, str], text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.owner, said.action) == (label, *who_what)
    assert said.evidence


@pytest.mark.parametrize("text", HEALTHY, ids=range(len(HEALTHY)))
def test_a_healthy_log_tells_of_no_failure(text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.action) == (None, None), said


def test_every_label_has_an_excerpt() -> None:
    assert {case[0] for case in CASES} == {str(label) for label in Label}


def test_ranks_that_print_their_own_losses_are_not_one_series(tmp_path: Path) -> None:
    for rank in (0, 1):
        text = "".join(f"step {step} loss {2.9 * 0.97**step + 0.01 * (step % 3):.4f}\n" for step in range(60))
        (tmp_path / f"rank-{rank}.log").write_text(text)
    lines = [line for path in sorted(tmp_path.iterdir()) for line in read_log(path)]
    assert diagnose(lines).label is None


def test_a_gzip_that_was_cut_or_damaged_is_read_up_to_there(tmp_path: Path) -> None:
    text = "".join(f"line {number} {number * 7919}\n" for number in range(20_000))
    whole = gzip.compress(text.encode())
    path = tmp_path / "x.log.gz"
    for data in (whole[: len(whole) // 2], whole[: len(whole) // 2] + bytes(64) + whole[len(whole) // 2 :]):
        path.write_bytes(data)
        problems: list[str] = []
        read = [line.raw for line in read_log(path, problems=problems)]
        assert len(problems) == 1
        assert 5_000 < len(read) < 20_000
        assert "\n".join(read[:5_000]) == "\n".join(text.splitlines()[:5_000])
    path.write_bytes(whole + whole)
    none: list[str] = []
    assert len(read_log(path, problems=none)) == 40_000
    assert none == []
    path.write_bytes(whole[:2] + bytes(100))
    with pytest.raises(CallError, match="cannot be read"):
        read_log(path)
