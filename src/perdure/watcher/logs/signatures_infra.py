"""Signatures of what machines hang on: memory, disks, networks, rendezvous, drivers, storage, schedulers, clocks."""

from __future__ import annotations

from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.signatures import Row

__all__ = ["CERTAIN_ROWS", "ENDED_ROWS", "HINT_ROWS", "ROWS"]

CERTAIN_ROWS: list[Row] = [
    (
        Label.DISK_FULL,
        "the node has no room on its local disk",
        r"evict\w*.*ephemeral[- ]storage|ephemeral[- ]storage.*(?:evict|exceed|limit)"
        r"|low on resource: ephemeral-storage|usage of EmptyDir.*exceeds|DiskPressure",
    ),
    (
        Label.HOST_OOM,
        "the kernel or the scheduler killed a process for its memory",
        r"out of memory: kill|oom-kill:|invoked oom-killer|memory cgroup out of memory|oom_reaper|OOMKill\w*"
        r"|detected \d+ oom[-_ ]kill|oom[-_]kill event|exceeded (?:job|step|its)? ?(?:memory"
        r"|virtual memory) limit|some of (?:your|the step) .*OOM handler|OUT_OF_MEMORY|TERM_MEMLIMIT"
        r"|killed .*(?:by the )?(?:cgroup )?out[- ]of[- ]memory|evict\w*.*(?:low on resource: memory"
        r"|MemoryPressure)|low on resource: memory|memory usage .*(?:exceeds|over) .*threshold"
        r"|OutOfMemoryError: (?:task|\d+ worker|worker).*|(?:task|worker"
        r"|process)\S* .{0,60}killed.{0,60}(?:low on memory|memory pressure|out of memory|oom)"
        r"|job.*exceeded.*mem(?:ory)?\b.*limit|mem(?:ory)? .*exceeded limit|earlyoom|systemd-oomd",
    ),
]

ROWS: list[Row] = [
    (
        Label.SHM,
        "shared memory is too small",
        r"insufficient shared memory|killed by signal: bus\b|(?:out of|not enough|running out of|lack of) shared memory"
        r"|bus error.*(?:shm|shared|worker)|(?:worker|dataloader).*bus error|(?:/dev/shm|shared memory"
        r"|shm_open|shm\b|torch_\d+_\d+).*(?:no space|cannot allocate|too small|fail\w*|unable"
        r"|resource temporarily|exhaust)|(?:no space|no room|unable|cannot|failed|error).*(?:/dev/shm"
        r"|shared memory (?:object|segment|file)|shm_open|</torch_)|received \d+ items of ancdata"
        r"|posix_fallocate.*(?:fail|no space)|increase .*--shm-size|shmmax|shmget.*fail"
        r"|torch_shm_manager.*(?:error|fail)",
    ),
    (
        Label.GPU_OOM,
        "a program filled the memory of a GPU through NCCL",
        r"(?:NCCL|RCCL).*(?:Cuda|HIP) failure.*out of memory",
    ),
    (
        Label.DISK_FULL,
        "a file system is full",
        r"no space left on device|\bENOSPC\b|disk quota exceeded|\bEDQUOT\b|quota (?:is "
        r"|has been )?exceeded.*(?:disk|file|inode|block|home|storage)|(?:disk|file ?system|volume|partition"
        r"|scratch)\b.{0,40}(?:is )?(?:full|100%)|(?:not enough|insufficient|no) (?:free )?(?:disk"
        r"|storage)[ -]?space|there is not enough space|Errno (?:28|122)\b|inodes? .*(?:exhaust|100%|full)"
        r"|PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos|file write failed"
        r"|file (?:size )?limit exceeded|Errno 27\b",
    ),
    (
        Label.CLOCK,
        "a clock has jumped",
        r"clock (?:skew|jump\w*|step\w*|drift\w*|went|moved|is (?:wrong|off|behind|ahead))"
        r"|(?:system )?(?:clock|time) (?:has )?(?:jumped|stepped|went backwards|moved backwards?|wrong by"
        r"|set back|was changed|not synchronized|unsynchroni[sz]ed)|RequestTimeTooSkewed"
        r"|certificate is not yet valid|timekeeping watchdog|clocksource.*unstable|time.*in the future"
        r"|(?:chronyd|ntpd|ptp4l|phc2sys|timesyncd)\S*:? .*(?:step|jump|wrong|skew|no servers|lost|unsync"
        r"|offset.*(?:exceed|too))|ntp.*not synchron",
    ),
    (
        Label.STALE_PROCESS,
        "a process of another job holds a GPU or device",
        r"all CUDA-capable devices are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
        r"|cudaErrorDevicesUnavailable|devices? (?:is |are )?(?:already )?in use by (?:another "
        r"|other )?process|(?:TPU|accelerator|GPU|device|/dev/\S+) .{0,40}(?:already )?(?:in use|held|locked"
        r"|occupied) by|exclusive[- ]process|(?:stale|zombie|orphan\w*|leftover|left[- ]over|defunct|dangling"
        r"|residual) (?:\S+ ){0,2}(?:process\w*|python|rank|trainer|job)|libtpu.*(?:in use|already)"
        r"|unable to (?:initialize backend 'tpu'|acquire).*in use|process(?:es)? (?:of|from) (?:a |an "
        r"|the )?(?:previous|other|another|earlier|old) (?:job|run|attempt)|unkillable|Kill task failed",
    ),
    (
        Label.DRIVER,
        "the driver of a machine is broken, or another one than its libraries",
        r"driver/library version mismatch|couldn't communicate with the NVIDIA driver|API mismatch: the client"
        r"|this kernel module has the version|make sure that this kernel module and all NVIDIA"
        r"|NVRM: .*(?:API mismatch|failed to (?:load|register)|No NVIDIA)|modprobe:? .*nvidia"
        r"|driver not loaded|nvml.*(?:not loaded|Driver Not Loaded|Unknown Error)|failed to initialize nvml"
        r"|nvidia-persistenced.*fail|ROCk module is not loaded|(?:fabric ?manager|nvidia-fabricmanager"
        r"|nv-fabricmanager).*(?:not running|not started|failed to start|inactive|version mismatch|mismatch"
        r"|exited|entered failed)|system (?:is )?not yet initialized|SYSTEM_(?:NOT_READY|DRIVER_MISMATCH)"
        r"|\(802\)|nvidia_peermem.*(?:fail|error|not)|nv_peer_mem.*(?:fail|error|not)|dkms.*(?:fail|error)"
        r"|nvidia-container-cli.*error|no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|nvidia\.ko",
        Owner.NODE,
        Action.EVICT,
    ),
    (
        Label.DRIVER,
        "a driver does not fit or does not start",
        r"driver/library version mismatch|driver version is insufficient"
        r"|couldn't communicate with the NVIDIA driver|API mismatch: the client"
        r"|no CUDA-capable device is detected|found no NVIDIA driver|no (?:CUDA|HIP|ROCm) GPUs are available"
        r"|NVIDIA driver on your system is too old|forward compatibility was attempted|compat\w* driver"
        r"|system (?:is )?not yet initialized|SYSTEM_(?:NOT_READY|DRIVER_MISMATCH)|\(802\)"
        r"|CUDA_ERROR_NO_DEVICE|modprobe:? .*nvidia|could not select device driver|nvidia-container-cli.*error"
        r"|libcuda\.so\S*: cannot open|libnvidia-ml\.so\S*.*(?:cannot|not found|couldn't)|nvml.*(?:not loaded"
        r"|not found|Driver Not Loaded|Unknown Error)|failed to initialize nvml|driver not loaded"
        r"|nvidia-persistenced.*fail|ROCk module is not loaded|hsa_init.*fail|(?:fabric ?manager"
        r"|nvidia-fabricmanager|nv-fabricmanager).*(?:not running|not started|failed to start|inactive"
        r"|version mismatch|mismatch|exited|entered failed)|unexpected error from cudaGetDeviceCount"
        r"|driver.*(?:does not (?:match|support)|incompatible|mismatch)|nvidia_peermem.*(?:fail|error|not)"
        r"|nv_peer_mem.*(?:fail|error|not)|NVRM: .*(?:API mismatch|failed to (?:load|register)|No NVIDIA)"
        r"|cuInit.*fail|failed call to cuInit|nvidia\.ko|unable to load the .*nvidia"
        r"|CUDA initialization: (?!.*out of memory)|(?:ofed|mlnx).*mismatch|mismatched NCCL version"
        r"|NCCL (?:version|library) mismatch|libnccl.*version .*mismatch|dkms.*(?:fail|error)"
        r"|hipErrorInsufficientDriver|CUDA_ERROR_UNSUPPORTED|XLA.*no GPU/TPU|GLIBC\w*[_ .\d']*not found"
        r"|libcudnn\S*: cannot open|CUDNN_STATUS_VERSION_MISMATCH|cuDNN version incompat",
    ),
    (
        Label.STORAGE,
        "a name could not be looked up on the way to storage",
        r"(?:https?://|s3[.:]|gs:|huggingface|amazonaws|blob\.core|googleapis|wandb|host='[^']*\.(?:com|co|net"
        r"|org|ai|io)').*(?:name resolution|failed to resolve|getaddrinfo|name or service not known|nodename)"
        r"|(?:name resolution|failed to resolve|getaddrinfo).*(?:https?://|s3[.:]|huggingface|amazonaws"
        r"|blob\.core|googleapis)",
        Owner.TRANSIENT,
        Action.RESTART,
    ),
    (
        Label.NET_CONFIG,
        "the network is configured wrongly",
        r"no socket interface found|is neither AF_INET|socket creation failed"
        r"|no (?:usable|suitable|matching|valid) (?:network |socket |ib "
        r"|rdma )?(?:interface|device|nic|adapter|hca)|no interface (?:found|match)|no device found.*(?:NCCL_"
        r"|IB_HCA)|unable to find (?:address|interface) for|unable to resolve hostname"
        r"|could not resolve (?:host|master)|unsupported gloo device|makeDeviceFor(?:Hostname|Interface)"
        r"|cannot find (?:network )?interface|(?:interface|ifname|NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME"
        r"|NCCL_IB_HCA|MASTER_ADDR)\S* .{0,60}(?:not found|does not exist|invalid|wrong|not exist|unknown"
        r"|cannot|mismatch|no such|not set|unset)|gloo connectFullMesh failed|name or service not known"
        r"|temporary failure in name resolution|nodename nor servname|\bgaierror|failed to resolve"
        r"|Network is unreachable|No route to host|errno:? ?(?:113|101)\b|host unreachable"
        r"|libibverbs.*(?:cannot|failed to open|not found)|failed to open libibverbs|ibv_(?:reg_mr\S*"
        r"|create_cq|create_qp|create_comp_channel|alloc_pd|open_device)\S* .*(?:fail|cannot allocate|error"
        r"|no such)|ibv_modify_qp\S* .*(?:fail|invalid|timed out|unreachable|error)|memlock|max locked memory"
        r"|RLIMIT_MEMLOCK|GID (?:index|table).*(?:invalid|not found|empty|mismatch|no)|invalid GID"
        r"|no (?:active|eligible|usable) (?:messages? )?(?:transport|provider|port|interface)"
        r"|destination is unreachable|fi_getinfo.*(?:no data|fail)|no eligible providers"
        r"|OFI.*(?:unable to find|no provider|failed to init)|pml ucx cannot|PML .*cannot be selected"
        r"|unable to (?:complete|establish|make) a TCP connection|blocked by (?:a )?firewall|firewall"
        r"|security group|MTU.*(?:mismatch|differ|too)|iptables|different subnets?|mca_btl_\S*.*(?:fail"
        r"|unreachable)|is not reachable|cannot reach (?:master|host|node|rank)|master address .*(?:wrong"
        r"|unreachable|not)|connect to .* failed ?: (?:no route|network is)|socket(?:Start"
        r"|Poll)Connect.*(?:no route|network)|SSL:? .*certificate_verify_failed|proxy ?error"
        r"|host key verification failed|permission denied \(publickey",
    ),
    (
        Label.RDZV,
        "the ranks did not meet",
        r"Rendezvous\w*(?:Error|Exception|Timeout)|rendezvous .{0,60}(?:fail|time|clos|error|reject"
        r"|not complete|could not)|(?:timed? ?out|failed|waiting).{0,60}rendezvous"
        r"|client socket has (?:timed out|failed to connect)|server socket has failed|address already in use"
        r"|\bEADDRINUSE\b|errno:? ?98\b|port \S* ?(?:is )?(?:already )?in use|waiting for clients"
        r"|clients? joined|DistStoreError|DistNetworkError.*(?:timed|connect|listen|bind)|(?:TCPStore"
        r"|c10d store|etcd|store).{0,60}(?:wait timeout|timed? ?out|failed to connect|connect\w* refused"
        r"|unavailable|lost leader)|etcd.*(?:exception|error|key already)|(?:only )?\d+ (?:of|/"
        r"|out of) \d+ (?:ranks?|nodes?|workers?|processes|clients|tasks)\b.{0,30}(?:joined|connected"
        r"|registered|arrived|checked in)|(?:barrier|coordination service|Coordinator).*(?:not all|waiting"
        r"|did not) .*(?:join|connect|register|arriv)|RegisterTask.*(?:fail|deadline|timed)"
        r"|jax\.distributed.*(?:connect|timeout|timed|fail)|DEADLINE_EXCEEDED.*(?:connect|coordinat|register"
        r"|initializ)|Failed to connect to (?:coordinator|master|head|rendezvous|MASTER_ADDR)"
        r"|failed to (?:bind(?! NVLink)|listen)|cannot bind|init_process_group.*(?:timed|fail|time-out)"
        r"|duplicate (?:node"
        r"|rank).*(?:rendezvous|join)|gcs.*(?:timed out|failed to connect)|world size .*not reached"
        r"|min_?nodes.*not|(?:cluster|task)s? .{0,20}registration failed|wait_for_all_tasks_to_register"
        r"|CoordinationService/RegisterTask",
    ),
    (
        Label.STORAGE,
        "a connection to an object store or hub broke",
        r"Remote end closed connection|RemoteDisconnected|Read ?Timeout(?:Error)?\b|ConnectTimeout(?:Error)?\b"
        r"|Endpoint ?Connection ?Error|FSTimeoutError|ConnectionClosedError|ServerDisconnected"
        r"|ClientPayloadError|ClientConnectorError|IncompleteRead|ProtocolError\(|ChunkedEncodingError"
        r"|MaxRetryError|max retries exceeded|\(SlowDown\)|: SlowDown\b|please reduce your request rate"
        r"|ServiceUnavailable|InternalServerError|TooManyRequests|RequestTimeout\b|RequestLimitExceeded"
        r"|\b(?:429|500|502|503|504)\b[: ]+(?:client|server|too|internal|bad|service|gateway|error)"
        r"|HTTP\S*[ :]+(?:error )?(?:429|5\d\d)\b|status(?:[ _]?code)?\W+(?:429|5\d\d)\b|bad gateway"
        r"|gateway time-?out|LocalEntryNotFoundError|HfHubHTTPError|(?:google\.api_core"
        r"|azure\.core)\S*\.(?:\w*(?:Unavailable|Timeout|RetryError|ServiceRe\w+|HttpResponse)\w*)"
        r"|azure\S*ServiceRe(?:quest|sponse)Error|connection (?:reset|aborted|broken|refused)\b.*(?:https?|s3"
        r"|hub|botocore|urllib|requests|bucket|url)|(?:https?|s3|hub|botocore|urllib3|requests"
        r"|bucket)\b.*(?:connection (?:reset|aborted|broken|refused)|remote disconnected|EOF occurred"
        r"|time-?d?[ -]?out)|ConnectionError: .*(?:http|hub|s3|host=)|requests\.exceptions\.(?:Conn|Time|Read"
        r"|SSL|Chunk)|AWS Error.*(?:NETWORK|timeout|SLOW_DOWN|curl)|curlCode|could ?n[o']t (?:connect"
        r"|reach) .*(?:huggingface|s3|hub|http|endpoint)|Unable to (?:read|write|upload|download"
        r"|fetch) .*(?:s3|gs:|bucket|http|blob)",
        Owner.TRANSIENT,
        Action.RESTART,
    ),
    (
        Label.STORAGE,
        "storage failed for a while",
        r"stale (?:NFS )?file handle|\bESTALE\b|Errno 116\b|transport endpoint is not connected|Errno 107\b"
        r"|input/output error|Errno 5\b|\bEIO\b|Remote I/O error|Errno 121\b|nfs:? .*(?:not responding"
        r"|timed out|server)|Remote end closed connection|(?:endpoint|read|connect|upload|download|request"
        r"|operation|socket|gateway|FS)\w*[ _]?time-?d? ?-?out.*(?:s3|gs|gcs|blob|bucket|object|storage|http"
        r"|url|endpoint|nfs|lustre|file|hub)|(?:s3|gs|gcs|bucket|object|storage|https?:|url|endpoint|nfs"
        r"|lustre|huggingface\S*|botocore\S*|hub)\b.*time-?d?[ -]?out|Read ?Timeout(?:Error)?\b"
        r"|ConnectTimeout(?:Error)?\b|Endpoint ?Connection ?Error|FSTimeoutError|ConnectionClosedError"
        r"|ServerDisconnected|ClientPayloadError|ClientConnectorError|IncompleteRead|ProtocolError"
        r"|ChunkedEncodingError|MaxRetryError|max retries exceeded|\(SlowDown\)|: SlowDown\b"
        r"|please reduce your request rate|ServiceUnavailable|InternalServerError|TooManyRequests"
        r"|RequestTimeout\b|RequestLimitExceeded|\b(?:429|500|502|503|504)\b[: ]+(?:client|server|too|internal"
        r"|bad|service|gateway|error)|HTTP\S*[ :]+(?:error )?(?:429|5\d\d)\b|status(?:[ _]?code)?\W+(?:429"
        r"|5\d\d)\b|bad gateway|gateway time-?out|LocalEntryNotFoundError|HfHubHTTPError"
        r"|could ?n[o']t (?:connect|reach) .*(?:huggingface|s3|hub|http|endpoint|storage)|(?:google\.api_core"
        r"|azure\.core)\S*\.(?:\w*(?:Unavailable|Timeout|RetryError|ServiceRe\w+|HttpResponse)\w*)"
        r"|azure\S*ServiceRe(?:quest|sponse)Error|Lustre(?:Error)?:? .*(?:evict|-\d+|lost|timed|in progress"
        r"|fail|error)|\b(?:mdt|ost|osc|mdc)\S*:? .*(?:connection.*lost|evicted|timed out)|(?:gpfs|mmfs"
        r"|ceph\S*|libceph|beegfs|weka\S*|vast|fuse|gcsfuse|glusterfs|daos|s3fs)\b.*(?:lost|timed|time-?out"
        r"|stale|fail|error|hung|expell?ed|not (?:responding|connected)|unmount|evict)|mount .*(?:stale|lost"
        r"|hung|fail|disappeared)|(?:file ?system|mount\S*|storage|object store|bucket)\b.{0,40}(?:unavailable"
        r"|unreachable|not (?:responding|mounted)|timed? ?out|hang|hung|lost)|blocked in .*(?:nfs|lustre)"
        r"|read-only file system|Errno 30\b|rpc_wait_bit|StorageError|connection (?:reset|aborted|broken"
        r"|refused)\b.*(?:https?|s3|hub|botocore|urllib|requests|bucket|url)|(?:https?|s3|hub|botocore|urllib3"
        r"|requests|bucket)\b.*(?:connection (?:reset|aborted|broken|refused)|remote disconnected"
        r"|EOF occurred)|Stripe|short read|AWS Error.*(?:NETWORK|timeout|SLOW_DOWN|curl)|curlCode"
        r"|Unable to (?:read|write|upload|download|fetch) .*(?:s3|gs:|bucket|http|blob)",
    ),
    (
        Label.CONTENTION,
        "another process takes what a rank needs",
        r"(?:another|other|foreign|unrelated|rogue|noisy|neighbou?r\w*|stray) (?:\S+ ){0,3}(?:process\w*|job"
        r"|container|tenant|pod|workload|user|neighbou?r).{0,80}(?:cpu|gpu|%|memory bandwidth|core|disk|io"
        r"|utili[sz]|consum|using|hog)|noisy neighbou?r|(?:cpu|gpu|core)s? .{0,40}(?:contention|oversubscri"
        r"|shared with|stolen|steal time|starv)|contention\b|cfs.*throttl|cpu throttl\w*(?!.*(?:temperature"
        r"|thermal))|nr_throttled|steal (?:time )?\W*\d\d|load average\W+\d{3,}|oversubscri\w+ (?:cpu|core"
        r"|node)",
    ),
    (
        Label.SCHED,
        "the scheduler ended the job",
        r"DUE TO PREEMPT\w*|preempt(?:ed|ion|ing)\b(?!.*(?:disabled|handler (?:is )?(?:registered|installed"
        r"|set)|enabled))|spot (?:instance )?(?:interrupt|terminat|reclaim)|instance (?:is being "
        r"|will be )?(?:reclaimed|interrupted)|interruption (?:notice|warning)|imminent node shutdown"
        r"|TaintManager|taint.*evict|TerminationByKubelet|maintenance (?:event|window|reservation)|(?:node"
        r"|host|instance) .{0,30}(?:drain(?:ed|ing)?\b|scheduled (?:for )?maintenance)|requeue[ds]?\b"
        r"|TERM_(?:PREEMPT|OWNER|ADMIN|CHKPNT)|TerminateOnHostMaintenance|scheduler .*(?:cancel|terminat|kill"
        r"|evict|stop)|bumped by|suspended by|SIGUSR[12] .*(?:scheduler|slurm|preempt|requeue|checkpoint)"
        r"|graceful\w* (?:shutdown|exit|stop).*(?:signal|scheduler|preempt)|Evicted\b|evict(?:ed|ing"
        r"|ion) (?:pod|job|by)|DisruptionTarget|higher[- ]priority",
        Owner.INFRA,
        Action.RESTART,
    ),
    (
        Label.STORAGE,
        "a connection to storage failed",
        r"ConnectionError: .*(?:http|hub|s3|host=)|requests\.exceptions|urllib3?\.\S*(?:Error|exceptions)"
        r"|botocore\.exceptions\.(?!NoCredentials|ClientError|PartialCredentials|ParamValidation"
        r"|ProfileNotFound|TokenRetrieval|UnauthorizedSSO)",
        Owner.TRANSIENT,
        Action.RESTART,
    ),
]

ENDED_ROWS: list[Row] = [
    (
        Label.SCHED,
        "the job's time was over",
        r"DUE TO TIME[ _]?LIMIT|time ?limit (?:reached|exceeded|expired)|exceeded .*(?:time ?limit"
        r"|wall ?-?(?:clock )?time|deadline)|wall ?-?time .*(?:exceed|reach|limit|over)|TERM_RUNLIMIT"
        r"|JobTimeLimit|DeadlineExceeded\b.*(?:job|active|pod)|active longer than specified deadline"
        r"|(?:reached|hit) (?:the )?(?:max(?:imum)? )?(?:wall|run|time|duration)\w*|max duration"
        r"|job .*timed out by|TIMEOUT\b.*slurm|slurm.*TIMEOUT",
        Owner.USER,
        Action.RESTART,
    ),
    (
        Label.SCHED,
        "somebody or the scheduler cancelled the job",
        r"CANCELLED (?:BY|DUE|by user)|scancel|(?:job|task|run|trial) .{0,30}cancell?ed (?:by|at)|qdel|bkill"
        r"|TERM_(?:USER|FORCE\w*)|terminated by (?:user|admin|scheduler)|User requested (?:to )?(?:cancel|stop"
        r"|terminat)",
        Owner.USER,
        Action.RESTART,
    ),
]

HINT_ROWS: list[Row] = [
    (
        Label.HOST_OOM,
        "a process was killed from outside, as the kernel does when memory is used up",
        r"exit(?:ed)?(?: ?with)?[ _]?(?:code|status|return code)?\W*(?:\(?-9\b|137\b)|return(?: ?code"
        r"|ed)?\W*(?:-9|137)\b|exit ?code\s*: ?-9|signal:? ?\(?9\)?\b|\bSIGKILL\b|killed by signal: killed"
        r"|^\S*\s*Killed\b|: \d+ Killed|died with <Signals\.SIGKILL",
    ),
    (
        Label.SCHED,
        "a signal from outside ended the job",
        r"SignalException.*(?:got signal: (?:15|1|2|10|12)|death signal)|got signal: (?:15|1|10|12)\b"
        r"|received (?:signal )?(?:SIGTERM|SIGHUP|SIGUSR\d|15|SIGINT)\b.*|caught (?:signal )?(?:SIGTERM|SIGHUP"
        r"|15|SIGINT)|Received \d+ death signal|KeyboardInterrupt",
    ),
    (Label.SCHED, "the launcher or scheduler cancelled a step", r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT"),
    (
        Label.RDZV,
        "the ranks did not get through the exchange of their first connection",
        r"ncclUniqueId.*store->get|setting up NCCL communicator and retrieving|store->get\(.*got error"
        r"|bootstrap.*(?:timed? ?out|fail)|initial\w* connection.*(?:refused|timed)|Connection refused"
        r"|ECONNREFUSED|errno:? ?111\b",
    ),
    (
        Label.METRIC_LOST,
        "a metric is not reported any more",
        r"(?:wandb|tensorboard|mlflow|comet|neptune|clearml|prometheus|metrics?|telemetry|statsd|logger"
        r"|grafana|exporter|loss|throughput|summary writer)\b.{0,80}(?:not (?:being )?(?:reported|logged"
        r"|received|updated|written)|no longer|stopped (?:report|updat|log|send)|missing|stale|lost"
        r"|fail\w* to (?:log|send|upload|push|write|report|sync)|dropped|no data|entering retry|unreachable"
        r"|gap|network error|scrape.*fail)|no (?:metrics?|samples|data points?) (?:received|reported|for"
        r"|since)",
    ),
]
