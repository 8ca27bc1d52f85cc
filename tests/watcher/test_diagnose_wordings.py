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
    ('hw.gpu_ecc', 'node', 'evict', 'E0101 12:00:00.1 1234 cuda_driver.cc:700] failed to synchronize: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered\nXlaRuntimeError: INTERNAL: Failed to execute XLA Runtime executable'),
    ('infra.host_oom', 'user', 'stop_user', '[2026-01-01] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 3 (pid: 991) of binary: /usr/bin/python'),
    ('infra.host_oom', 'user', 'stop_user', "[launch.py:321:sigkill_handler] Killing subprocess 1201\n[launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9"),
    ('hw.host', 'node', 'evict', 'Jan  1 00:00:00 ctl slurmctld[1]: error: Nodes gpu-[17-18] not responding, setting DOWN'),
    ('hw.host', 'node', 'evict', 'INFO:agent:heartbeat of node gpu-9 missing for 40 s; ssh: connect to host gpu-9 port 22: No route to host'),
    ('sw.user_code', 'user', 'stop_user', "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct"),
    ('sw.user_code', 'user', 'stop_user', 'train.py: error: unrecognized arguments: --num-layrs 24'),
    ('sw.user_code', 'user', 'stop_user', 'RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.cuda.FloatTensor [64, 10]]'),
    ('sw.user_code', 'user', 'stop_user', 'jax.errors.TracerArrayConversionError: The numpy.ndarray conversion method __array__() was called on traced array'),
    ('sw.user_code', 'user', 'stop_user', 'IndexError: index out of range in self'),
    ('sw.gpu_oom', 'user', 'stop_user', 'torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 4.00 GiB (GPU 2; 63.98 GiB total capacity; 60.1 GiB already allocated; 2.1 GiB free; 61.3 GiB reserved in total by PyTorch)'),
    ('sw.gpu_oom', 'user', 'stop_user', 'ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.'),
    ('sw.stale_process', 'infra', 'restart', "RuntimeError: Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 4012."),
    ('sw.desync', 'user', 'stop_user', 'RuntimeError: Mismatched allreduce tensor shapes: One or more ranks submitted a tensor of different shape: rank 1 has [10], rank 0 has [12]'),
    ('sw.desync', 'user', 'stop_user', 'Detected at least one rank that exhausted inputs. Throwing across all ranks.'),
    ('sw.lib_bug', 'user', 'stop_user', '*** Process received signal ***\n*** Signal: Segmentation fault (11)\n*** Signal code: Address not mapped (1)'),
    ('sw.lib_bug', 'user', 'stop_user', "python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av) && old_size == 0)' failed.\nfree(): invalid pointer\nAborted (core dumped)"),
    ('sw.lib_bug', 'user', 'stop_user', 'Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: Page not present or supervisor privilege.'),
    ('sw.dataloader', 'user', 'restart', 'step 800 loss 2.0\nwaiting for next batch for 600 s, data loader workers not responding'),
    ('sw.ckpt_corrupt', 'infra', 'rollback', 'ValueError: Checksum mismatch for checkpoint shard 3: expected 12ab got 77cd'),
    ('sw.ckpt_corrupt', 'infra', 'rollback', 'OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)'),
    ('train.nan', 'data', 'rollback', 'AssertionError: found Inf in local grad norm before allreduce on rank 4'),
    ('train.nan', 'data', 'rollback', "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    ('infra.driver', 'infra', 'evict', 'RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version'),
    ('infra.driver', 'node', 'evict', 'docker: Error response from daemon: nvidia-container-cli: initialization error: nvml error: driver not loaded'),
    ('infra.storage', 'infra', 'restart', 'nfs: server 10.0.0.5 not responding, timed out'),
    ('infra.storage', 'transient', 'restart', 'botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation: Please reduce your request rate.'),
    ('infra.storage', 'transient', 'restart', "urllib3.exceptions.NewConnectionError: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution host='huggingface.co'"),
    ('sw.user_code', 'user', 'stop_user', 'botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: Access Denied'),
    ('sw.user_code', 'user', 'stop_user', 'OSError: You are trying to access a gated repo.\n401 Client Error. Unauthorized for url: https://huggingface.co/meta-llama'),
    ('infra.rdzv', 'infra', 'restart', 'jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. not all tasks registered 3/4'),
    ('infra.disk_full', 'user', 'stop_user', 'Warning  Evicted  kubelet  The node was low on resource: ephemeral-storage.'),
    ('infra.disk_full', 'user', 'stop_user', 'tensorflow.python.framework.errors_impl.ResourceExhaustedError: /scratch/ckpt; No space left on device'),
    ('infra.net_config', 'user', 'stop_user', 'mpirun: A process or daemon was unable to complete a TCP connection to another process. This is usually caused by a firewall'),
    ('infra.net_config', 'user', 'stop_user', 'UCX  ERROR   no active messages transport to <no debug data>: self/memory - Destination is unreachable'),
    ('infra.sched', 'infra', 'restart', 'slurmstepd: error: *** JOB 4 ON n3 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***'),
    ('infra.sched', 'user', 'restart', 'TERM_RUNLIMIT: job killed after reaching LSF run time limit.'),
    ('hw.straggler', 'node', 'evict', 'NVRx: GPU relative performance stragglers detected: rank 12 score 0.58 on node n3'),
    ('hw.nvlink', 'node', 'evict', 'NCCL WARN NVLink link 4 on GPU 2 is down'),
    ('hw.thermal', 'node', 'evict', 'ipmi: GPU inlet temperature critical, fan 3 failure, clocks throttled'),
    ('hw.nic_link', 'node', 'evict', "mlx5_core 0000:ab:00.0: mlx5_cmd_fw: device's health compromised - reached miss count"),
    ('train.divergence', 'user', 'stop_user', 'step 0 | loss 2.1\nstep 1 | loss 2.09\nstep 2 | loss 2.11\nstep 3 | loss 2.08\nstep 4 | loss 3.5\nstep 5 | loss 6.2\nstep 6 | loss 8.0\nstep 7 | loss 9.1\nstep 8 | loss 9.4\nstep 9 | loss 9.5'),
    ('train.fp16_scale', 'user', 'stop_user', '[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1\nException: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.'),
    ('infra.shm', 'user', 'stop_user', "OSError: [Errno 28] No space left on device: '/dev/shm/train_cache_0'"),
    ('infra.shm', 'user', 'stop_user', 'RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode: Too many open files (24)'),
]
HEALTHY = [
    '[2026-01-01 00:00:00,000] [INFO] [config.py:1000:print]   train_batch_size ............. 1024\n[2026-01-01 00:00:00,000] [INFO] [config.py:1000:print]   loss_scale ................... 0\n[2026-01-01 00:00:00,000] [INFO] [config.py:1000:print]   gradient_clipping ............ 1.0\ntime (ms) | forward-backward: 1200.1 | optimizer: 30.2\n iteration      10/  500000 | consumed samples: 10240 | elapsed time per iteration (ms): 1300.1 | learning rate: 1.5E-06 | global batch size: 1024 | lm loss: 1.05E+01 | loss scale: 4294967296.0 | grad norm: 2.1 | number of skipped iterations: 10 | number of nan iterations: 0 |',
    "Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00,  1.2it/s]\nSome weights of LlamaForSequenceClassification were not initialized from the model checkpoint and are newly initialized: ['score.weight']\nYou should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.\n{'loss': 0.71, 'grad_norm': 2.2, 'learning_rate': 1e-05, 'epoch': 0.1}\n{'loss': 0.69, 'grad_norm': 2.1, 'learning_rate': 1e-05, 'epoch': 0.2}\n{'train_runtime': 100.1, 'train_loss': 0.5, 'epoch': 1.0}",
    'INFO:root:fault tolerance enabled, max_restarts=3, heartbeat timeout 30 s\nINFO:root:starting 8 ranks\nINFO:root:error handling: on failure restart\nINFO:root:rank 0 step 5 loss 2.0\nINFO:root:saved checkpoint 5, 0 errors\nINFO:root:job finished with exit code 0',
    "2026-01-01T00:00:00Z n1 systemd[1]: Started Session 44 of user u.\n2026-01-01T00:00:01Z n1 kernel: nvidia: module license 'NVIDIA' taints kernel.\n2026-01-01T00:00:01Z n1 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n2026-01-01T00:00:01Z n1 kernel: mlx5_core 0000:5e:00.0 ib2: Link up",
    'GPU 0: temp 61C power 640W sm 1980MHz ecc errors: 0 pcie gen 5 x16 nvlink ok\nGPU 1: temp 62C power 644W sm 1980MHz ecc errors: 0 pcie gen 5 x16 nvlink ok',
    'eval: perplexity 12.1, accuracy 0.7\nWARNING: the dataloader has 3 workers but 64 cpus are available\nstep 10: loss 2.0\nstep 20: loss 1.9',
    'Epoch 3: 100%|##########| 500/500 [10:01<00:00,  1.2s/it, loss=0.31, v_num=4]\n`Trainer.fit` stopped: `max_epochs=3` reached.',
]
# fmt: on


@pytest.mark.parametrize(("label", "owner", "action", "text"), CASES, ids=range(len(CASES)))
def test_other_words_give_the_same_label_owner_and_action(label: str, owner: str, action: str, text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.owner, said.action) == (label, owner, action)


@pytest.mark.parametrize("text", HEALTHY, ids=range(len(HEALTHY)))
def test_other_healthy_logs_tell_of_no_failure_either(text: str) -> None:
    said = diagnose(lines_of(text))
    assert (said.label, said.action) == (None, None), said
