"""Signatures of programs and libraries: exceptions, GPU memory, collectives that do not fit, crashes, and cascades."""

from __future__ import annotations

from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.signatures import Row

__all__ = ["CASCADE_ROWS", "FIRST_ROWS", "GENERIC_ROWS", "HINT_ROWS", "ROWS"]

_USER, _NOBODY, _STOP, _RESTART = Owner.USER, Owner.NOBODY, Action.STOP_USER, Action.RESTART

FIRST_ROWS: list[Row] = [
    (
        Label.NET_CONFIG,
        "memory cannot be registered with the network card: a limit is too low",
        r"ibv_reg_mr\S*.*cannot allocate|memlock|max locked memory",
    ),
    (
        Label.USER_CODE,
        "an assertion of a kernel failed: an index or a label is out of its range",
        r"device-side assert|(?:\.cuh?:\d|\bblock: \[|\.hip:\d).{0,200}Assertion .{0,160} failed"
        r"|cudaErrorAssert|CUDA_ERROR_ASSERT"
        r"|index out of bounds.*(?:kernel|assert)|HIP.*device-side",
    ),
    (
        Label.USER_CODE,
        "storage refuses the program's credentials or name",
        r"NoCredentials|AccessDenied|NoSuchBucket|NoSuchKey|ExpiredToken|InvalidAccessKey"
        r"|SignatureDoesNotMatch|Unauthorized\w*|\b40[134]\b[: ]+(?:client|forbidden|not found|unauthorized)"
        r"|(?:GatedRepo|RepositoryNotFound|EntryNotFound|RevisionNotFound)Error"
        r"|status(?:[ _]?code)?\W+40[0134]\b|Forbidden\b|not a valid model identifier|Can't load (?:tokenizer"
        r"|config\w*|the model|feature)",
    ),
    (
        Label.USER_CODE,
        "parameters of the model took no part in the loss",
        r"finished reduction in the prior iteration|parameters that were not used in producing"
        r"|unused[_ ]parameters|did not receive grad|marked (?:as )?ready (?:only once|twice)"
        r"|No inf checks were recorded",
    ),
    (
        Label.GPU_OOM,
        "the memory of a GPU is too small for the program",
        r"CUDA out of memory|\btried to allocate [\d.]+ [KMGT]i?B\b"
        r"|(?:HIP|XPU|MPS|NPU|TPU|GPU|device|hbm)\S* (?:backend )?(?:is "
        r"|has )?(?:run )?out of memory|cuda\.OutOfMemoryError|torch\.OutOfMemoryError"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA error: out of memory"
        r"|CUDA failure.*out of memory|RESOURCE_EXHAUSTED|Resource exhausted:|OOM when allocating"
        r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaMalloc\w* failed"
        r"|ran out of memory in memory space hbm|Exceeded hbm capacity|failed to allocate .*(?:device|gpu|hbm"
        r"|bytes on)|No available memory for the cache blocks|CUDA memory.*exceed|allocat\w+ .*(?:GiB"
        r"|MiB) .*(?:GPU|device)\b.*fail|CUBLAS_STATUS_NOT_INITIALIZED",
    ),
    (
        Label.HOST_OOM,
        "a machine ran out of memory",
        r"can't allocate memory: you tried to allocate|DefaultCPUAllocator|std::bad_alloc|bad_alloc"
        r"|_?ArrayMemoryError|\bMemoryError\b|(?<!shm)cannot allocate memory|Errno 12\b|\bENOMEM\b"
        r"|unable to allocate [\d.]+ (?:[KMGT]i?B)|worker .*is killed by signal: Killed|cudaHostAlloc.*fail"
        r"|pin(?:ned)?[ _]memory.*out of memory|fork.*(?:resource temporarily|cannot allocate)|out of (?:host "
        r"|system |cpu )?(?:memory|RAM)\b.*(?:host|node|system|ram)|(?:host|node|system|cpu) (?:is )?(?:ran "
        r"|run |running )?out of (?:memory|ram)",
    ),
    (
        Label.DESYNC,
        "ranks called different collectives",
        r"mismatch(?:es|ed)? (?:between |in |of )?(?:\S+ ){0,2}collectives?|collectives? .{0,40}(?:mismatch"
        r"|differ|do(?:es)? not match|out of sync|out of order|not in sync|desync)|collective shape"
        r"|ran(?:ks)? .{0,60}(?:different|mismatched|inconsistent) (?:\S+ ){0,2}(?:collective|op\b|operation"
        r"|shape|tensor size|order|number of (?:calls|collectives|steps|batches))"
        r"|DDP expects same model across all ranks|params? .{0,30}(?:inconsistent"
        r"|different) (?:\S+ )?(?:across|between) ranks|verif\w+ (?:params|model) .*across (?:processes|ranks)"
        r"|op\.preamble\.length|preamble\.length ?<= ?|preamble|Message truncated|MPI_ERR_TRUNCATE"
        r"|mismatched (?:all-?reduce|all-?gather|broadcast|tensor|data)|inconsistent (?:tensor )?(?:shape|size"
        r"|dtype)s? (?:across|between|on) ranks|tensor (?:sizes?|shapes?|dtypes?) .*(?:differ|must (?:match"
        r"|be (?:equal|the same))|mismatch).* (?:ranks|processes|across)|invalid tensor size at index"
        r"|subset of ranks|desync\w*|ranks? (?:have|has|are) (?:gone )?(?:out of sync|diverged"
        r"|de-?synchroni[sz]ed)|uneven (?:inputs|number of batches|data)|exhausted (?:all|their|its) (?:data"
        r"|inputs|batches) .*(?:before|while)|Detected at least one rank that exhausted inputs"
        r"|enforce fail at .*gloo/(?:transport/\w+/pair|allreduce|broadcast|allgather)"
        r"|collective .{0,20}(?:order|sequence) .{0,30}(?:wrong|violat|differs)",
    ),
    (
        Label.RANK_SKEW,
        "others waited for a rank that was still in work of its own",
        r"failed to pass monitoredBarrier|Rank\(?s?\)? .{0,30}(?:failed to reach|did not (?:reach|call"
        r"|arrive at|join)|not reached|has not (?:reached|arrived|called)|still) .{0,40}(?:barrier"
        r"|monitoredBarrier|collective|tokeni[sz]ing|saving|loading|preprocessing|evaluat\w+|writing"
        r"|download\w*|building|compil\w+)|(?:waiting|waited|timed out|timeout)\b.{0,60}(?:rank|for rank"
        r"|on rank) ?\d* .{0,40}(?:to finish|tokeni[sz]|saving|loading|preprocess|evaluat|writing|download"
        r"|building|compil|still|preparing)|monitoredBarrier.{0,80}(?:time-?d? ?out|fail)"
        r"|only rank 0 .{0,60}(?:sav|load|tokeni|download|build|evaluat|process)\w*.*",
    ),
]

ROWS: list[Row] = [
    (
        Label.DATALOADER,
        "a data loader stands still or has died",
        r"DataLoader worker.{0,40}(?:exited unexpectedly|killed by signal|died|crash)|DataLoader timed out"
        r"|pin memory thread exited|(?:data ?loader|prefetch\w*|input pipeline|data worker|loader worker"
        r"|data loading|tf\.data)\b.{0,80}(?:hang|hung|stuck|stall\w*|timed? ?out|dead|died|starv|not respond"
        r"|blocked|exited|deadlock|no batch|still waiting)|(?:waiting|waited|blocked|stuck"
        r"|stalled) .{0,60}(?:data ?loader|next batch|for (?:a )?batch|data worker|input pipeline"
        r"|data iterator|the loader|_try_get_data)|no (?:new )?batch (?:for|in|since)|_try_get_data"
        r"|worker pool .*(?:died|broken)|BrokenProcessPool",
    ),
    (
        Label.USER_CODE,
        "the program asks for what this build or GPU does not have",
        r"no kernel image is available|invalid device ordinal|invalid device function|hipErrorNoBinaryForGpu"
        r"|Duplicate GPU detected|ncclInvalidUsage|invalid configuration argument|too many resources requested"
        r"|not compiled with CUDA enabled|not linked|requires (?:Ampere|Hopper|CUDA|GPU|sm_)\S*"
        r"|is not (?:supported|implemented) (?:for|on|by) .{0,20}(?:Half|BFloat16|gpu|device|cuda|cpu|sm_)"
        r"|not implemented for '",
    ),
    (
        Label.LIB_BUG,
        "a communication library fails, and no machine stands out",
        r"bug in (?:nccl|rccl|the driver)|deadlock in (?:nccl|rccl)|(?:all"
        r"|every|\d+/\d+) (?:\d+ )?(?:ranks?|workers|gpus|processes)\b.{0,80}\b(?:stop\w*|hang|hung|stuck"
        r"|stand|stall\w*|froze\w*)\b.{0,60}(?:same|together|at once|equal|nccl kernel|within \d|of each other"
        r"|simultaneous)|100 ?% .{0,30}all ranks.{0,60}no Xid|no (?:odd|single|one) rank",
        Owner.INFRA,
        _RESTART,
    ),
    (
        Label.LIB_BUG,
        "a library or kernel reached for memory that is not its own",
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress|misaligned address"
        r"|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure|illegal instruction"
        r"|invalid program counter|Memory access fault by GPU|HSA_STATUS_ERROR\w*|hipErrorIllegal\w*"
        r"|hipErrorLaunchFailure|(?:CUBLAS|CUSPARSE|CUSOLVER|CUFFT|HIPBLAS|MIOPEN)_STATUS_(?:EXECUTION_FAILED"
        r"|INTERNAL_ERROR|ARCH_MISMATCH|INVALID_VALUE|NOT_SUPPORTED)|CUDNN_STATUS_\w+|miopenStatus\w+"
        r"|Fatal Python error|segmentation fault|segfault at|Assertion [`\'(].{0,200}failed"
        r"|double free or corruption|free\(\): invalid"
        r"|malloc\(\): |malloc_consolidate|munmap_chunk|corrupted (?:double-linked list|size|unsorted)"
        r"|stack smashing|pure virtual method|heap[- ]corruption|INTERNAL ASSERT FAILED|BackendCompilerFailed"
        r"|InternalTorchDynamoError|InductorError|LoweringException|ptxas (?:fatal|error)|Triton Error"
        r"|triton\.compiler\.errors|LLVM ERROR|XLA.*(?:INTERNAL|check failed)|XlaRuntimeError: INTERNAL"
        r"|tcmalloc.*large alloc.*fail|floating point exception|AddressSanitizer|bug in (?:pytorch|nccl"
        r"|the library|cudnn|deepspeed|megatron|torch)|known (?:bug|issue) in|deadlock in (?:nccl|torch"
        r"|the library)|PyGILState|GIL.*deadlock",
        _USER,
        _STOP,
    ),
    (
        Label.CKPT_CORRUPT,
        "a checkpoint is not there",
        r"(?:No such file|FileNotFoundError|does not exist|not found"
        r"|could not find).{0,120}(?:latest_checkpointed_iteration|mp_rank_|zero_pp_rank|\.distcp"
        r"|model_optim_rng|pytorch_model-\d+-of|model-\d+-of-\d+\.safetensors)",
    ),
    (
        Label.USER_CODE,
        "weights do not fit the model",
        r"error\(s\) in loading state_dict|size mismatch for|(?:missing|unexpected) key\(s\) in state_dict",
    ),
]

HINT_ROWS: list[Row] = [
    (
        Label.SHM,
        "a process died of a bus error, as it does when shared memory is used up",
        r"\bSIGBUS\b|bus error|exit ?code\W*(?:-7|135)\b|signal:? ?\(?7\)?\b|return ?code\W*(?:-7|135)\b",
    ),
    (
        Label.LIB_BUG,
        "a process crashed in native code",
        r"\bSIGSEGV\b|\bSIGILL\b|\bSIGFPE\b|exit ?code\W*(?:-11|139|-4|132|-8|136)\b|signal:? ?\(?(?:11|4"
        r"|8)\)?\b|return ?code\W*=? ?(?:-11|139|-4|-8)\b|core dumped|terminate called|SIGSYS|SIGTRAP",
        _USER,
        _STOP,
    ),
    (
        Label.NET_CONFIG,
        "a rank could not be reached over the interface that was chosen",
        r"socket(?:Start|Poll|Try)Connect: Connect to|Net : Connect to \S+ .*failed|Call to connect .*failed",
    ),
    (
        Label.LIB_BUG,
        "a communication library fails, and no machine stands out",
        r"ncclInternalError|internal (?:check failed|error).*(?:nccl|rccl)|(?:NCCL|RCCL) (?:WARN )?.*internal error",
        Owner.INFRA,
        _RESTART,
    ),
    (
        Label.UNKNOWN,
        "a library's call to the system failed",
        r"ncclSystemError|unhandled system error|ncclUnhandledCudaError|unhandled cuda error",
    ),
]

CASCADE_ROWS: list[Row] = [
    (
        Label.UNKNOWN,
        "a connection to another rank closed",
        r"connection closed by (?:remote )?peer|connection reset by (?:remote )?peer|reset by peer|broken pipe"
        r"|peer (?:has )?(?:closed|disconnected|went away|exited)|read error|socketProgress"
        r"|remote process (?:has )?(?:exited|closed)|failed to recv|recvBytes|recvValue|sendBytes"
        r"|recv(?:eived)?,? (?:got )?0 bytes|ncclRemoteError|network error or a remote process exiting"
        r"|connection was likely closed|ECONNRESET|EPIPE|Socket (?:Timeout|closed)|UNAVAILABLE:"
        r"|software caused connection abort|Connection (?:timed out|aborted)|end of file|EOFError$"
        r"|HorovodInternalError|has been shut ?down|unexpected disconnect|DistBackendError|store .*(?:closed"
        r"|gone)|Errno (?:104|32|110|103)\b",
    ),
    (
        Label.UNKNOWN,
        "a collective did not finish",
        r"Watchdog caught collective operation timeout|collective operation timeout"
        r"|ProcessGroup\w+.*(?:time-?d? ?out|abort\w*|exception|terminat|watchdog)|WorkNCCL"
        r"|nccl (?:communicator|comm) (?:was |is )?abort\w*|NCCL (?:timeout|error|operation)\w*"
        r"|timed out waiting .*(?:recv|send|operation|collective)|\bcollective\b.*(?:time-?d? ?out|hang|hung"
        r"|stuck)|(?:barrier|all-?reduce|all-?gather|broadcast|reduce-?scatter|all-?to-?all|send"
        r"|recv)\b.{0,60}(?:timed? ?out|time-?out|hang|hung|stuck)|heartbeat.{0,40}(?:time-?out|timed out"
        r"|stuck|missing|lost|stopped|expired)|HeartbeatMonitor|flight ?recorder|unhealthy (?:task|rank"
        r"|worker)s?|stopped sending heartbeats|Application timeout caused|DEADLINE_EXCEEDED|Barrier timed out"
        r"|(?:gloo|io)::?TimeoutException|(?:job|training|process|run|step|iteration)\b.{0,40}(?:\bhang"
        r"|\bhung\b|\bstuck\b|stalled|no progress|frozen|not progressing)|no progress (?:for|in|since)",
    ),
    (
        Label.UNKNOWN,
        "a launcher stops the ranks that are left",
        r"ChildFailedError|Sending process \d+ closing signal|closing signal SIG\w+|killing subprocess"
        r"|exits with return code|failed \(exitcode: *-?\d+\)|exit ?code\s*:? ?\(?-?[1-9]\d*"
        r"|exited with (?:exit )?(?:code|status)|exit status [1-9]|non-?zero (?:exit|status)"
        r"|root cause \(first observed|MPI_ABORT|prterun|mpirun (?:noticed|detected|has exited)|srun: error"
        r"|task \d+: (?:exited|terminated|killed)|STEP .* CANCELLED|SIGABRT|SIGTERM|SIGQUIT|Aborted"
        r"|returned (?:a )?non-?zero|WorkerGroup|worker group|local_rank: \d+ .*(?:fail|kill)"
        r"|process group .*fail|process \d+ terminated|ProcessExitedException|ProcessRaisedException"
        r"|actor (?:died|unavailable|is dead)|RayActorError|RayTaskError|WorkerCrashedError"
        r"|TrainingFailedError|(?:Back-?off|CrashLoop\w*)|Forcing job termination|will be terminated"
        r"|Terminating (?:tasks|processes|all)|CalledProcessError|one or more (?:tasks|processes) exited"
        r"|job step aborted",
    ),
]

GENERIC_ROWS: list[Row] = [
    (
        Label.USER_CODE,
        "the program raised an exception",
        r"^\s*(?:E\s+)?(?:[A-Za-z_]\w*\.)*(?:(?:ModuleNotFound|Import|Name|Type|Attribute|Key|Index|Value"
        r"|Assertion|ZeroDivision|NotImplemented|UnboundLocal|Syntax|Indentation|Recursion|FileNotFound"
        r"|NotADirectory|IsADirectory|FileExists|Permission|Lookup|Arithmetic|Overflow|StopIteration|Unicode"
        r"|Runtime|OS|Environment|Config\w*|Validation\w*|Parse\w*|Yaml\w*|YAML\w*|Hydra\w*|Shape\w*"
        r"|Misconfiguration|Interpolation\w*|Override\w*|InstantiationE\w*|LinAlg|TorchRuntime|Unsupported"
        r"|UserE\w*|Tokeniz\w*|JaxRuntime|ConcretizationType\w*|TracerArray\w*|UnexpectedTracer|Scanner"
        r"|Dataset\w*|Trainer\w*|ModelE\w*)(?:Error|Exception)?|[A-Z]\w*(?:Error|Exception))\b(?: *:|\s*$|\()",
    ),
    (
        Label.USER_CODE,
        "the program was called wrongly",
        r"unrecognized arguments|error: (?:argument|the following arguments|invalid choice|unrecognized)"
        r"|can't open file|command not found|No module named|cannot import name|No such file or directory"
        r"|Permission denied|invalid syntax|usage: .*\[-h\]|is a directory|undefined symbol"
        r"|Too many open files",
    ),
    (
        Label.USER_CODE,
        "the program asked for shapes, dtypes or devices that do not fit",
        r"shapes? cannot be multiplied|must match the (?:size|existing)"
        r"|expected all tensors to be on the same device|same dtype|expected (?:scalar type|input|size|\d+D)"
        r"|modified by an inplace operation|does not require grad|backward through the graph a second time"
        r"|not divisible by|must be divisible|out of range|is not defined|has no attribute"
        r"|unexpected keyword argument|missing \d+ required",
    ),
]
