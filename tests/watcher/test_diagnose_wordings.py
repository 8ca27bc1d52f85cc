"""The same faults in other words: excerpts in the wording of other tools and releases, invented for these tests."""
# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from perdure.watcher.logs.diagnose import diagnose
from perdure.watcher.logs.reading import lines_of

# fmt: off
CASES: list[tuple[str, str, str, str]] = [
    ('hw.gpu_ecc', 'node', 'evict', 'ERROR: nvidia-smi reports 2 uncorrectable ECC errors on GPU 00000000:3B:00.0 (volatile)'),
    ('hw.gpu_ecc', 'node', 'evict', 'NVRM: Xid (PCI:0000:9d:00): 95, pid=123, Uncontained: LTC TAG (0x2,0x0)'),
    ('hw.gpu_ecc', 'node', 'evict', "RuntimeError: NCCL Error 1: unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 'uncorrectable ECC error encountered'"),
    ('hw.gpu_ecc_contained', 'node', 'restart', 'NVRM: Xid (PCI:0000:9d:00): 94, pid=4, Contained: CE User Channel\nNVRM: Xid (PCI:0000:9d:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.'),
    ('hw.gpu_off_bus', 'node', 'evict', 'nvmlDeviceGetHandleByIndex failed: GPU is lost'),
    ('hw.gpu_off_bus', 'node', 'evict', 'RuntimeError: expected 8 GPUs, found 7 on host a100-17'),
    ('hw.gpu_gsp', 'node', 'evict', 'kernel: NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out on GPU4'),
    ('hw.nvlink', 'node', 'evict', 'CUDA error: uncorrectable NVLink error detected during the execution'),
    ('hw.nvlink', 'node', 'evict', 'nv-fabricmanager: failed to train NVLink between GPU 3 and NVSwitch 1, marking partition degraded, fatal error'),
    ('hw.pcie', 'node', 'evict', 'kernel: pcieport 0000:b0:01.1: pciehp: Slot(33): Link Down\nkernel: pcieport 0000:b0:01.1: pciehp: Slot(33): Card not present'),
    ('hw.gpu_other', 'node', 'evict', 'NVRM: Xid (PCI:0000:2a:00): 109, pid=77, name=python, Ch 0000001d, errorString CTX SWITCH TIMEOUT, Info 0x14c004'),
    ('hw.gpu_other', 'node', 'evict', 'NVRM: RmInitAdapter failed! (0x62:0x40:2477)\nNVRM: rm_init_adapter failed, device minor number 2'),
    ('hw.thermal', 'node', 'evict', 'GPU 5 is overheating: 94C, throttling to 600 MHz; rank 13 slows the job'),
    ('hw.nic_link', 'node', 'evict', 'n3:9:12 [1] transport/net_ib.cc:1200 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4444> with status=12 opcode=32600 len=0 vendor err 129 (Recv)'),
    ('hw.nic_link', 'node', 'evict', 'kernel: bond0: link status definitely down for interface ens3f0np0, disabling it\nkernel: ens3f0np0: NIC Link is Down'),
    ('hw.host', 'node', 'evict', 'kernel: Kernel panic - not syncing: Fatal exception in interrupt'),
    ('hw.host', 'node', 'evict', 'Warning  NodeNotReady  pod/train-worker-7  Node is not ready'),
    ('hw.host', 'node', 'evict', 'blk_update_request: I/O error, dev nvme0n1, sector 123456 op 0x0:(READ)\nEXT4-fs (nvme0n1p1): Remounting filesystem read-only'),
    ('hw.straggler', 'node', 'evict', 'straggler detection: rank 37 on node gpu-104 is 1.4x slower than the median of its peers'),
    ('hw.sdc', 'node', 'evict', 'replicas disagree after step 4000: rank 6 weights hash a1b2 vs c3d4 on ranks 0-5,7'),
    ('infra.host_oom', 'user', 'stop_user', 'slurmstepd: error: Detected 1 oom_kill event in StepId=51.0. Some of the step tasks have been OOM Killed.'),
    ('infra.host_oom', 'user', 'stop_user', 'ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.'),
    ('infra.host_oom', 'user', 'stop_user', "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"),
    ('infra.shm', 'user', 'stop_user', 'RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.'),
    ('infra.disk_full', 'user', 'stop_user', 'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'),
    ('infra.net_config', 'user', 'stop_user', 'libfabric: fi_getinfo() failed: No data available\nNCCL WARN NET/OFI Failed to initialize, no eligible providers found'),
    ('infra.net_config', 'user', 'stop_user', 'gloo: makeDeviceForHostname(): unsupported gloo device'),
    ('infra.net_config', 'user', 'stop_user', 'NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\nNCCL WARN you may need to raise the memlock limit (ulimit -l)'),
    ('infra.rdzv', 'infra', 'restart', 'RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).'),
    ('infra.rdzv', 'infra', 'restart', 'torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 14/16 clients joined.'),
    ('infra.driver', 'node', 'evict', 'CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized'),
    ('infra.driver', 'infra', 'evict', 'RuntimeError: No CUDA GPUs are available'),
    ('infra.storage', 'infra', 'restart', "OSError: [Errno 5] Input/output error: '/mnt/nfs/data/shard_01.bin'"),
    ('infra.storage', 'transient', 'restart', 'google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/b/x'),
    ('infra.storage', 'transient', 'restart', 'aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected'),
    ('infra.sched', 'user', 'restart', 'slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***\nsrun: error: n1: task 0: Terminated'),
    ('infra.sched', 'infra', 'restart', 'Received spot interruption notice, instance will be terminated in 2 minutes'),
    ('sw.user_code', 'user', 'stop_user', "ModuleNotFoundError: No module named 'flash_attn_2_cuda'"),
    ('sw.user_code', 'user', 'stop_user', 'RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([32000, 4096])'),
    ('sw.user_code', 'user', 'stop_user', "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"),
    ('sw.user_code', 'user', 'stop_user', 'AssertionError: num_attention_heads must be divisible by tensor_model_parallel_size'),
    ('sw.user_code', 'user', 'stop_user', 'RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 1024x512)'),
    ('sw.gpu_oom', 'user', 'stop_user', 'RuntimeError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 0; 39.39 GiB total capacity; 36.2 GiB already allocated; 600.56 MiB free; 37.1 GiB reserved in total by PyTorch)'),
    ('sw.gpu_oom', 'user', 'stop_user', 'RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`'),
    ('sw.desync', 'user', 'stop_user', 'RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 4096 vs 1024'),
    ('sw.desync', 'user', 'stop_user', 'RuntimeError: DDP expects same model across all ranks, but Rank 1 has 211 params, while rank 0 has inconsistent 213 params.'),
    ('sw.desync', 'user', 'stop_user', 'Stalled ops: rank 1 missing tensor allreduce.layer3 submitted by subset of ranks [0, 2, 3]'),
    ('sw.rank_skew', 'user', 'stop_user', 'Saving model checkpoint to /out/checkpoint-500 ...\n[rank7]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1200, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600099 milliseconds before timing out.'),
    ('sw.rank_skew', 'user', 'stop_user', 'Generating train split: 4100000 examples [29:01, 2300 examples/s]\ntorch.distributed.DistBackendError: Timeout waiting for key: default_pg/0/0 after 1800000 ms\nCollective operation timeout: BARRIER timed out'),
    ('sw.dataloader', 'user', 'restart', 'Thread 88 (idle): "MainThread"\n    poll (multiprocessing/popen_fork.py:27)\n    _try_get_data (torch/utils/data/dataloader.py:1131)'),
    ('sw.dataloader', 'user', 'restart', 'RuntimeError: DataLoader worker (pid 871) is killed by signal: Segmentation fault.'),
    ('sw.lib_bug', 'user', 'stop_user', 'RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`'),
    ('sw.lib_bug', 'infra', 'restart', 'ncclInternalError: Internal check failed.\nLast error:\nNET/IB : bad request state'),
    ('sw.lib_bug', 'user', 'stop_user', 'torch._inductor.exc.InductorError: LoweringException: AssertionError'),
    ('sw.ckpt_corrupt', 'infra', 'rollback', 'OSError: Unable to load weights from pytorch checkpoint file; EOFError: Ran out of input'),
    ('sw.ckpt_corrupt', 'infra', 'rollback', 'zipfile.BadZipFile: File is not a zip file  (loading /ckpt/step100/optim.pt)'),
    ('train.nan', 'data', 'rollback', 'Loss is nan, stopping training'),
    ('train.nan', 'data', 'rollback', 'ValueError: gradient norm is inf at step 3011 on rank 5'),
    ('train.divergence', 'user', 'stop_user', 'ERROR: loss 11.2 exceeded threshold, training diverged, aborting'),
    ('train.fp16_scale', 'user', 'stop_user', 'FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.'),
    ('train.bad_resume', 'user', 'rollback', 'WARNING: resumed from step 9000 but optimizer state was not found in the checkpoint, using fresh Adam moments'),
    ('transient.unknown', 'transient', 'restart', 'RuntimeError: NCCL communicator was aborted on rank 3.'),
    ('transient.unknown', 'transient', 'restart', 'torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.'),
]
# fmt: on


@pytest.mark.parametrize(("label", "owner", "action", "text"), CASES, ids=range(len(CASES)))
def test_other_words_give_the_same_label_owner_and_action(label: str, owner: str, action: str, text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.owner, said.action) == (label, owner, action)
