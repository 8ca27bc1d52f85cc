"""Signatures of machines: GPUs, their links, network cards, hosts. Xid lines are read by `kernel`."""

from __future__ import annotations

from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.signatures import Row

__all__ = ["CERTAIN_ROWS", "MENDED_ROWS", "ROWS", "WEAK_ROWS"]

_NODE, _EVICT, _WARN, _RESTART = Owner.NODE, Action.EVICT, Action.WARN, Action.RESTART

MENDED_ROWS: list[Row] = [
    (
        Label.NVLINK_NONFATAL,
        "an NVLink reports errors that it has mended",
        r"SXid.*non-?fatal|nvswitch.*non-?fatal|nvlink.*(?:non-?fatal|correctable error|recovered (?:link"
        r"|error)|replay(?:ed)?|minor error|CRC.*(?:warn|threshold|increas))"
        r"|fabric ?manager.*non-?fatal",
    ),
]

CERTAIN_ROWS: list[Row] = [
    (
        Label.GPU_ECC,
        "a GPU has a memory error that cannot be corrected",
        r"uncorrectable ECC|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable|ECC uncorrectable|double[- ]bit ECC"
        r"|uncorrectable (?:sram|dram|hbm|memory) error|hipErrorECCNotCorrectable|\bDBE\b.*(?:ecc|detected|volatile)"
        r"|ecc\.errors\.uncorrected\S*[ :=,]+[1-9]|uncorrected (?:volatile|aggregate)? ?ecc\D*[1-9]",
    ),
    (
        Label.GPU_ECC,
        "rows of a GPU's memory could not be remapped",
        r"row[- ]?remap\w*\W.*(?:fail|pending\W+(?:yes|true|1))|remapp?(?:ed"
        r"|ing)[ _]?(?:rows?)?[ _.]?fail\w*\W+(?:yes|true|[1-9])"
        r"|failed to remap row|amdgpu.*(?:uncorrectable|\bUE\b).*(?:error|umc|hbm)|RAS.*uncorrectable"
        r"|DCGM_FR_(?:VOLATILE_DBE|ROW_REMAP_FAIL|UNCORRECTABLE|DBE|PENDING_(?:PAGE_RETIREMENTS|ROW_REMAP))"
        r"|retired pages.*double bit\D*[1-9]|\bpending page (?:blacklist|retirement)\W+yes",
    ),
    (
        Label.GPU_OFF_BUS,
        "a GPU has fallen off its bus",
        r"fallen off the bus|GPU is lost|GPU(?: \d+)? has been lost|NVML_ERROR_GPU_IS_LOST|GPU_IS_LOST"
        r"|unable to determine the device handle for (?:gpu|.*nvidia)|GPU.*(?:disappeared|not (?:found"
        r"|visible) on (?:the )?(?:pci|bus))"
        r"|expected \d+ gpus?,? (?:but )?(?:found|got|only|detected|see)|amdgpu.*(?:device lost|GPU lost"
        r"|lost from bus)"
        r"|DCGM_FR_.*GPU_LOST|missing gpu|gpu (?:count|number) mismatch",
    ),
    (
        Label.GPU_GSP,
        "the system processor of a GPU does not answer",
        r"Timeout (?:after \d+s )?(?:of|while) waiting for RPC|GSP RPC (?:timeout|timed out)|GSP (?:error"
        r"|fatal|timeout|crash|task exception)"
        r"|\bGSP\b.*(?:timed? ?out|hung|not respond|halted|heartbeat)|rpcRmApi\w+: GspRm\w+ failed|gspfw"
        r"|_kgspRpc.*(?:fail|timeout)",
    ),
    (
        Label.NVLINK,
        "an NVLink or NVSwitch is down",
        r"SXid.*(?:fatal|link|fail)|nvswitch.*(?:fatal|fail|down|error|lost)|NVLINK_UNCORRECTABLE|uncorrectable nvlink"
        r"|nvlink.*(?:is |went |state:? ?|status:? ?|link \d+:? ?)(?:down|inactive|disabled|fail)"
        r"|nvlink.*(?:training|init\w*).*fail"
        r"|nvlink\S*(?: \w+){0,3} fatal|nvlink error|NVLinks? (?:\d+ )?(?:failed|failure|lost|degraded)"
        r"|link \d+ on gpu \S+ .*down"
        r"|fabric ?manager.*(?:fatal|link.*fail|gpu.*(?:evict|remov)|degraded)|\bICI\b.*(?:down|fail|fatal"
        r"|unhealthy|error)"
        r"|xgmi.*(?:error|fail|down)|DCGM_FR_NVLINK_(?:DOWN|ERROR_CRITICAL|ERROR_THRESHOLD)"
        r"|fabric state:? *(?:fail|error|degraded)",
    ),
    (
        Label.PCIE,
        "a PCIe link fails",
        r"AER:.*(?:uncorrect|\bfatal)|pcie.*(?:uncorrect\w+|\bfatal) (?:error|\()"
        r"|severity=Uncorrect\w+ ?\(?(?:fatal|non-fatal)?"
        r"|PCIe (?:link|gen|width|bus).*(?:degrad|downgrad|downtrain|reduced|narrow|lower than|below|expected)"
        r"|available PCIe bandwidth, limited by.*capable of|DPC:.*(?:containment|triggered)|unmasked uncorrectable"
        r"|(?:link|lnksta).*width x\d+ \(downgraded\)|speed \S+ \(downgraded\)|pcie link (?:is )?(?:lost|down"
        r"|failed)|completion timeout.*pcie"
        r"|pcieport.*(?:link down|card not present)|pci.*replay (?:count\w*|rollover|number).*(?:exceed|high"
        r"|increas|threshold)"
        r"|DCGM_FR_PCI_REPLAY|current pcie (?:gen|link|width).*max",
    ),
    (
        Label.HOST,
        "the hardware or the kernel of a machine fails",
        r"kernel panic|not syncing|(?:soft|hard) ?lock-?up|watchdog: BUG|unable to handle (?:kernel"
        r"|page fault)|\bOops: \d|general protection fault.*(?:\[#|kernel|SMP)"
        r"|kernel BUG at|machine check (?:exception|error)"
        r"|\bmce:(?!.*(?:events logged|\bcorrected|correctable|CECC)).*(?:hardware error|machine check|uncorrect"
        r"|cpu \d+: bank)|\[hardware error\](?!.*(?:events logged|\bcorrected|CECC))"
        r"|EDAC \S+ ?\d?: \d* ?UE|uncorrect(?:ed|able) (?:hardware )?memory error|memory failure: 0x"
        r"|rcu\w*:? .*(?:self-)?detected (?:expedited )?stalls?"
        r"|CATERR|\bIERR\b|processor .*(?:internal error|thermal trip)|power (?:supply|unit).*(?:fail|lost"
        r"|redundancy lost)|PSU\d? (?:fail|fault|lost)"
        r"|(?:dimm|memory module).*(?:uncorrect|fail)|NMI: (?:IOCK|not continuing|PCI system error)"
        r"|fatal (?:hardware|machine) error"
        r"|nvme\d?\S*:? .*(?:controller is down|device not ready|fatal status|removing after probe)|(?:I/O"
        r"|critical medium|critical target) error,? (?:on )?dev(?:ice)? (?:nvme|sd|vd)"
        r"|(?:EXT4|XFS|BTRFS).*(?:error|corrupt|shut ?down|remount).*|remounting filesystem read-only"
        r"|md/raid\S*:? .*(?:disk failure|fail)|SMART.*(?:fail|prefail)",
    ),
    (
        Label.HOST,
        "a machine has gone",
        r"(?:DUE TO|reason[=:]) ?(?:NODE[ _]?FAIL\w*)|NODE_FAIL|srun: error: node failure|node failure on \S+"
        r"|nodes? \S+ (?:is |are )?(?:not responding|unresponsive|unreachable|down)\b"
        r"|NodeNotReady|node is not ready|node status is now: ?\W*NotReady|kubelet (?:has )?stopped posting"
        r"|node controller.*(?:lost|unreachable)|NodeLost|node\.kubernetes\.io/(?:unreachable|not-ready)"
        r"|(?:node|host|machine|instance) \S* ?(?:has |was |is )?(?:been )?(?:died|dead|lost|crashed|rebooted"
        r"|powered off|marked (?:as )?dead|unexpectedly (?:rebooted|shut))"
        r"|(?:unexpected|spontaneous)(?:ly)? (?:reboot|shutdown|power)|ssh: connect to host .*(?:timed out"
        r"|no route)|lost (?:contact|connection) (?:with|to) (?:node|host|machine)"
        r"|(?:not|no) (?:received|receiving)? ?heartbeat\w* (?:from|of) (?:node|host)"
        r"|missing heartbeats? (?:from|of) (?:node|host)|ORTE has lost communication"
        r"|Hardware maintenance|impaired (?:instance|host)|system status check\w* fail|HostError"
        r"|node health check.*fail|health ?check.*(?:node|host).*fail",
    ),
    (
        Label.SDC,
        "ranks that must be equal are not: a machine computes wrong numbers",
        r"silent data corruption|\bSDC\b.*(?:detect|found|suspect)|(?:checksum|hash|digest|parameter|weight"
        r"|param)\w*\W.{0,60}(?:differ|mismatch|not match\w*|diverge|inconsistent|disagree|not (?:equal"
        r"|identical|in sync)).{0,60}(?:replica|data[- ]parallel|\bdp\b|across (?:dp|ranks|gpus))"
        r"|(?:replica|data[- ]parallel|\bdp\b (?:rank|group)).{0,60}(?:checksum|hash|digest|parameter"
        r"|weight)\w*\W.{0,60}(?:differ|mismatch|diverge|inconsistent|disagree|not (?:equal|match|identical))"
        r"|(?:checksum|hash|digest)\w* (?:of|on|from) rank \d+ (?:differ|disagree|do(?:es)? not match"
        r"|mismatch)|rank \d+ (?:has|with|reports?) (?:a )?(?:different|wrong|divergent) (?:checksum|hash"
        r"|weights|parameters)"
        r"|(?:replay|rerun|re-?comput\w+|second run).{0,60}(?:differ|mismatch|not (?:bit|ident|match|reproduc"
        r"|equal))|not bit-?(?:wise|exact)|possible (?:persistent|transient) error.*rank|(?:persistent"
        r"|transient) error.*rerun"
        r"|(?:gpu|device|node|rank) ?\S* (?:computes?|produce[sd]?|return(?:s|ed)) (?:wrong|incorrect"
        r"|different|inconsistent) (?:result|number|value|output)s?|memtest.*fail|(?:gemm"
        r"|matmul) (?:self[- ]?)?(?:test|check).*(?:mismatch|fail|wrong)"
        r"|replica_mismatch|\breplicas? .{0,40}(?:disagree|differ|diverge)|replicas? (?:no longer|do not) agree",
    ),
]

ROWS: list[Row] = [
    (
        Label.NVLINK,
        "the fabric of NVLinks does not take the multicast that NCCL sets up",
        r"NVLink SHARP .*(?:fail|error)|fail\w* to \w+ NVLink|nvls\.cc:\d+ NCCL WARN Cuda failure",
    ),
    (
        Label.NIC_LINK,
        "a network link fails",
        r"NET/IB.*(?:async event|async fatal).*(?:port|catastrophic|fatal|device)"
        r"|async event ?: ?(?:port error|local catastrophic|device fatal|link)|ibv_event.*port_err"
        r"|IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL)|IBV_WC_(?:RETRY_EXC|RNR_RETRY|RESP_TIMEOUT|WR_FLUSH)\w*"
        r"|(?:got completion|completion (?:from|with)).*(?:error|status)[ =]*(?:5|12|13)\b"
        r"|transport retry count\w* exceeded|retry (?:counter )?exceeded|RNR retry|retry[_ ]exc"
        r"|mlx\d_core.*(?:link down|port (?:module event|down|\d+ down)|health.*(?:compromised|poll|fail)"
        r"|device'?s health|cable (?:unplugged|error|shorted)|fatal (?:sensor|error)|assert_var|poll_health"
        r"|timeout.*cmd|error recovery)"
        r"|mlx\d_\S+.*(?:link down|port.*(?:down|err)|state\S* (?:down|polling|init))|(?:^|[\s:(])(?:ib\d+"
        r"|ib[a-z]?\d*s?\d\w*|eth\d+|en[opsx]\w+|bond\d+|hsn\d+|rdma\d+|roce\w*|bnxt\S*"
        r"|ens\w+)\S*:? .*(?:link (?:is |went )?(?:down|lost|flap\w*)|carrier (?:lost|down|off)|lost carrier"
        r"|not ready|tx.*(?:timeout|timed out|hang))"
        r"|NIC (?:link )?(?:is )?(?:down|fail|reset|flap)|NIC link|link (?:is )?(?:flap|flapping)"
        r"|(?:infiniband|IB|RoCE|HCA|rdma|network) (?:link|port|cable|device|adapter)\S*.*(?:down|error|fail"
        r"|flap|lost|unhealthy|polling)"
        r"|port \d+ .*(?:state change|changed state).*(?:down|init|polling)|port state.*(?:down|init|polling)"
        r"|NETDEV WATCHDOG|transmit queue.*timed out|symbol error\w*.*(?:exceed|high|increas|threshold)"
        r"|link_downed|cxi\S*.*(?:link|fatal|down)|EFA.*(?:unhealthy|device fatal|unreachable remote)"
        r"|PFC (?:storm|watchdog)|local (?:qp|length) .*error.*ib|vendor (?:err|error) (?:129|0x81)"
        r"|UCX.*(?:ERROR|WARN).*(?:endpoint.*timeout|transport retry|remote.*unreachable|port.*(?:down|error)"
        r"|link)|RDMA.*(?:traffic|bandwidth).*(?:zero|dropped|0 )"
        r"|switch port.*(?:down|err|flap)|optical|transceiver|DCGM_FR_.*IB|subnet manager.*(?:lost|unreach)",
    ),
    (
        Label.THERMAL,
        "a GPU or processor is throttled by its heat or power",
        r"(?:hw|sw|hardware|software)?[ _]?thermal[ _]?(?:slow-?down|throttl\w*|violation|trip|limit|shutdown"
        r"|event)(?!\W+(?:not active|0\b|false|inactive|no\b))|throttl\w+.*(?:thermal|temperature|heat|power"
        r"|hot)|(?:thermal|temperature|heat|power brake|overheat)\w*.*throttl|(?:hw"
        r"|hardware) power[ _]brake(?!\W+not active)|power brake slowdown\W+active"
        r"|temperature above threshold|over-?temp\w*|overheat\w*|(?:gpu|hbm|memory|core"
        r"|junction) temp\w*.*(?:exceed|above|critical|limit reached|too high|over )|temp\w* \d+ ?(?:°?c"
        r"|degrees).*(?:exceed|above|critical|over|slow-?down)"
        r"|clocks?_throttle_reasons\.(?:hw_slowdown|hw_thermal|sw_thermal|hw_power)\S*[ :=,]+active|(?:fan"
        r"|coolant|cooling|pump).*(?:fail|fault|stopp|critical)|DCGM_FR_(?:THERMAL|CLOCK_THROTTLE|TEMP)\w*"
        r"|sm clock.*(?:dropped|reduced|stuck|below|capped)|clocks? (?:is |are )?(?:throttled|capped)",
    ),
    (
        Label.GPU_OTHER,
        "a GPU fails",
        r"CUDA error: unknown error|CUDA_ERROR_UNKNOWN\b|cudaErrorUnknown|unspecified driver error"
        r"|CUDA error: (?:hardware stack error|context is destroyed)|hardware stack error"
        r"|RmInitAdapter failed|rm_init_adapter failed|GPU (?:\S+ )?(?:requires? (?:a )?reset|reset required"
        r"|recovery action|is in an? (?:bad|error|unrecoverable) state|initiali[sz]ation (?:error|fail\w*)"
        r"|hang|hung|unhealthy|failed)|the launch timed out and was terminated"
        r"|amdgpu.*(?:ring \S+ timeout|gpu reset|GPU recovery|hang)|hipErrorUnknown|infoROM (?:is )?corrupt"
        r"|corrupted infoROM|dcgmi? diag\S*.*fail|DCGM_FR_(?:XID|FIELD_VIOLATION|UNKNOWN|SRAM)"
        r"|gpu health check.*fail|hsa_status_error.*(?:hardware|device)|NVML_ERROR_(?:RESET_REQUIRED|UNKNOWN)"
        r"|cuda error.*\(999\)|CUDA failure 999|CUDA error 999",
    ),
    (
        Label.SUSPECT,
        "a machine was there each time",
        r"(?:same|this) (?:node|host|machine|rank).{0,40}(?:each|every|again|twice|second|third|\d+ times"
        r"|in all)|(?:node|host|machine) \S+ .{0,60}(?:in (?:all|each"
        r"|every) (?:of )?(?:the )?(?:last )?(?:\d+ )?(?:failures?|attempts?|hangs?)|(?:second|third|\d+(?:nd"
        r"|rd|th)) (?:time ?-?out|failure|hang|incident))|(?:lemon|suspect) (?:node|host|machine)"
        r"|repeat offender",
    ),
]

WEAK_ROWS: list[Row] = [
    (
        Label.STRAGGLER,
        "a rank computes slower than its peers",
        r"stragglers?\b(?!.*(?:\bno\b|none|: *\[\]|not found|\b0\b(?!\.)))|(?:rank|gpu|node|host) ?\S* (?:is|was"
        r"|has been|runs?|computes?|takes?) .{0,40}(?:slower|behind its peers|slow\b)|slow(?:est)? (?:rank"
        r"|node|gpu|host)s?\b.{0,80}(?:\d|detect|found)|(?:performance|perf) score\D{0,30}0\.[0-6]\d*",
        _NODE,
        _EVICT,
    ),
    (
        Label.PCIE,
        "a PCIe link reports errors that it has mended",
        r"AER:.*corrected|severity=corrected|PCIe Bus Error.*correct",
        _NODE,
        _WARN,
    ),
    (
        Label.HOST,
        "a machine reports memory errors that it has mended",
        r"EDAC \S+ ?\d?: \d* ?CE|machine check events logged|\[hardware error\].*\bcorrected|\bCECC\b"
        r"|corrected (?:hardware )?(?:memory )?error|correctable memory error",
        _NODE,
        _WARN,
    ),
    (
        Label.GPU_ECC_CONTAINED,
        "a GPU reports memory errors that it has mended",
        r"(?:single[- ]bit|correctable) ECC|row[- ]?remap\w*(?!.*fail)|ECC error.*(?:contained|corrected)"
        r"|page retire",
        _NODE,
        _WARN,
    ),
    (Label.HOST, "a task of the kernel stands still", r"blocked for more than \d+ seconds", _NODE, _RESTART),
]
