"""Signatures of the training itself and of checkpoints, and the lines that look like trouble and are none."""

from __future__ import annotations

from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.signatures import Row

__all__ = ["DECOYS", "ROWS"]

ROWS: list[Row] = [
    (Label.FP16_SCALE, "the loss scale of fp16 is used up",
     r"loss[ _]scale .{0,40}(?:minimum|min\b|underflow|zero|too small|below|already at|used up|exhausted|lower than|collapsed|dropped to (?:0|1))|minimum (?:loss|gradient) scale|min(?:imum)? loss[ _]scale|cannot decrease (?:loss )?scale|loss scal(?:e|er|ing).* to ?(?:0(?:\.0+)?|1(?:\.0)?|[\d.]+e-\d+)\b|(?:reducing|decreas\w+|lower\w+|reduced) (?:loss )?scale .*to (?:0(?:\.0+)?|1(?:\.0)?|[\d.]+e-\d+)\b|grad(?:ient)? scaler? .*(?:0\.0|zero|underflow|collapsed)|(?:consecutive|all|every|too many|\d{2,}) .{0,30}(?:skipped (?:steps|iterations|updates)|overflow(?:s|ed steps)?)\b.*(?:fp16|scale|overflow|half)"),
    (Label.BAD_RESUME, "training went on from another state than it was left in",
     r"(?:resum\w+|restor\w+|re-?load\w+|restart\w*|after (?:the )?(?:restore|load))\b.{0,100}(?:loss (?:jump|differ|higher|is higher|mismatch|spike|went up|rose|does not match|discontinu)|without (?:the )?(?:optimi[sz]er|rng|scheduler|lr|momentum)|(?:optimi[sz]er|rng|scheduler|momentum|sampler|data ?loader)\S*.{0,30}(?:missing|not (?:found|restored|loaded|in)|reset|re-?init|fresh|skipp|mismatch|from scratch)|wrong (?:step|iteration|checkpoint|data|epoch)|step 0\b|iteration 0\b|different (?:data|seed|order|state|checkpoint|loss)|same (?:data|batches) again)|(?:optimi[sz]er|rng|scheduler|lr scheduler|momentum|data ?loader|sampler)\S*( state\w*)? .{0,40}(?:not (?:found|restored|loaded|saved) |missing|skipp\w+|reset|re-?initiali[sz]ed|from scratch).{0,60}(?:resum|restor|checkpoint|load)|loss .{0,60}(?:after|since|on) (?:the )?(?:resum\w+|restor\w+|restart|reload\w*|loading)|loss (?:before|at) (?:save|saving|checkpoint).*(?:after|now)|(?:iteration|step|epoch|consumed samples)\S* .{0,40}(?:does not match|mismatch|!=|differs?).{0,60}checkpoint|checkpoint .{0,60}(?:step|iteration)\S* .{0,30}(?:does not match|mismatch|!=|older than|stale)|stale checkpoint|resum\w+ (?:from|at) .{0,40}(?:behind|older|wrong)"),
    (Label.CKPT_CORRUPT, "a checkpoint cannot be read",
     r"failed (?:reading|finding) (?:zip archive|central directory)|PytorchStreamReader failed|not a ZIP archive|File is not a zip file|BadZipFile|bad CRC|CRC[- ]?(?:32)? (?:check )?(?:fail|mismatch|error)|invalid load key|UnpicklingError|pickle data was truncated|unpickling stack|Ran out of input|SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeader|IncompleteMetadata|file might be corrupted|storage has wrong (?:byte )?size|unexpected EOF, expected|unexpected pos.*read|(?:checkpoint|ckpt|shard|safetensors|model state|optim\S*state|weights? file|snapshot|\.(?:pt|pth|bin|ckpt|distcp|safetensors))\b.{0,80}(?:corrupt|truncat|damaged|incomplete|cannot be read|unreadable|(?:checksum|hash|digest|md5|crc|sha256).{0,20}(?:mismatch|fail|wrong|differ|not match)|is not a (?:valid )?checkpoint|malformed|wrong size|zero bytes|is empty|partial(?:ly)? writ|unexpected end|invalid header|missing shard)|(?:corrupt\w*|truncated|damaged|incomplete|unreadable|malformed|partial\w*) (?:\S+ ){0,3}(?:checkpoint|ckpt|shard|safetensors|state|snapshot|weights|archive|index|manifest)|(?:checksum|hash|digest|md5|sha256|crc)\w* .{0,40}(?:mismatch|fail|differ|not match)\w*.{0,80}(?:checkpoint|ckpt|shard|\.pt|\.bin|safetensors|blob|chunk|ocdbt|zarr)|truncated file|file signature not found|(?:tensorstore|orbax|ocdbt|zarr).*(?:DATA_LOSS|corrupt|error decoding|missing|invalid|not found)|DATA_LOSS|DataLossError|Unable to open file.*truncated|zlib\.error|Error -3 while decompress|gzip.*(?:crc|not a gzipp|end-of-stream)|EOFError: Compressed|tile \d+ of .* is (?:corrupt|damaged)|No such file.*(?:mp_rank_\d+|\.distcp|\.metadata|__\d+_\d+)|CheckpointException|(?:missing|no) (?:rank )?(?:file|shard|part)\S* .{0,30}(?:of|in|for) (?:the )?checkpoint"),
    (Label.NAN, "numbers are not finite any more",
     r"\b(?:nan|inf|infinity|non-?finite|not finite)\b.{0,60}(?:loss|grad|norm|detect|found|encounter|output|forward|backward|weight|param|activation|logit|values?|stopping|abort|bucket|batch|step)|(?:loss|grad\w*|norm|logits?|activations?|weights?|param\w*|outputs?|tensor)\b.{0,60}(?:\bnans?\b|\binf\b|infinity|infinite|non-?finite|not finite)|returned nan values|(?:found|detected|encountered|got|produced|contains?|has|have|is|are|became|went) (?:a |an |all |some |any |the )?(?:\S+ )?(?:nans?|infs?|infinit\w+|non-?finite)\b(?! (?:check|values are))|FloatingPointError|(?:nan|inf) or (?:inf|nan)|probability tensor contains either|contains? (?:nan|inf)|check_for_nan|nan_in_grad|number of nan iterations: +[1-9]"),
    (Label.SPIKE_RECOVERED, "the loss rose and came back",
     r"(?:loss|grad\w*) .{0,20}spike.{0,80}(?:recover|back to|returned|went away|resolved|came (?:back|down)|settled|normal)|(?:recover\w*|back to normal|back down).{0,40}spike"),
    (Label.DIVERGENCE, "the loss rises and stays",
     r"\b(?:diverg(?:ed|ing|ence|es)|blow(?:s|ing|n)? up|explod(?:ed|ing))\b.{0,60}(?:loss|training|stop|abort|step|run|lr|learning)|(?:loss|training|run|model)\b.{0,60}\b(?:diverg(?:ed|ing|ence|es)|blew up|blow(?:s|n|ing)? up|explod(?:ed|es|ing)|not (?:converg|recover)\w*|does not (?:come|go) down|exceed(?:s|ed)? (?:the )?(?:threshold|limit|max)|(?:rose|rising|increas\w+) .{0,30}(?:stay|never|not (?:come|recover)|for \d+ steps))|loss (?:spike )?.{0,30}(?:did not|never|has not) (?:recover|come)"),
    (Label.METRIC_LOST, "a metric is not reported any more", r"loss (?:is )?(?:not|no longer) (?:being )?(?:reported|logged|printed)|no loss (?:reported|logged) (?:for|since)"),
    (Label.USER_CODE, "a sample of the data cannot be read",
     r"UnidentifiedImageError|image file is truncated|JSONDecodeError|UnicodeDecodeError|Parquet magic bytes|ArrowInvalid|tarfile\.\w*Error|DatasetGenerationError|CastError|(?:sample|record|dataset|data file|tfrecord|example|mmap|\.idx|\.jsonl?|\.parquet|\.tar)\b.{0,60}(?:corrupt|malformed|truncated|invalid|unreadable|cannot be (?:read|decoded|parsed)|bad line|damaged)|corrupt\w* (?:\S+ ){0,2}(?:sample|record|image|example|row|line|data|jpeg|input)|mmap length is greater than file size|error (?:decoding|parsing) (?:sample|record|example|image|line)",
     Owner.DATA, Action.STOP_USER),
]  # fmt: skip

DECOYS: list[str] = [
    r"\b(?:Future|Deprecation|PendingDeprecation|Resource|User|Runtime|Syntax|Import|Experimental)Warning\b",
    r"PMIX.*(?:NO-PERMISSIONS|ERR_NO_PERM|ERROR: (?:ERROR|NOT-FOUND|UNREACH|OUT-OF-RESOURCE)?\b.* in file)|PMIX ERROR",
    r"errno: 97|address family not supported by protocol|cannot be retrieved|hostname of the client socket",
    r"deprecat|is experimental|will be removed in|legacy",
    r"consider passing CUDA_LAUNCH_BLOCKING|Compile with .?TORCH_USE_CUDA_DSA|TORCH_SHOW_CPP_STACKTRACES|might be asynchronously reported",
    r"stacktrace below might be incorrect|for debugging consider|see documentation for memory management|max_split_size_mb",
    r"due to the asynchronous nature of CUDA kernels|to avoid (?:data inconsistency|this)|taking the entire process down",
    r"(?:this|which) (?:may|might|could|can) (?:also )?(?:be (?:caused|due)|indicate|happen|mean)|possible (?:cause|reason)s?|common (?:cause|reason)s?",
    r"if you (?:see|get|want|encounter|are|have|think)|please (?:make sure|check|refer|see|consider|ensure|try)|try (?:setting|increasing|reducing|running|using)|you (?:can|may|could|might|should) (?:also )?(?:try|increase|set|reduce|use|enable)|^\s*(?:hint|tip|note|help)\b *:",
    r"failed to load image python extension|unable to register (?:cu|\w+ factory)|could not find TensorRT|TF-TRT Warning|computation_placer|cuDNN factory",
    r"exception ignored in|leaked (?:semaphore|shared_memory)|resource_tracker|destroy_process_group\(\) was not called|tokenizers_parallelism|huggingface/tokenizers:",
    r"could not find the metadata file|will not load any checkpoints|libibverbs: warning|couldn't load driver|apex is not installed|not installed, (?:skipping|falling)|falling back to|fall back to",
    r"gradient overflow.*skipping step(?!.*to (?:0|1)(?:\.0)?\b)|OVERFLOW! .*Attempted loss scale: \d{2,}",
    r"\bno (?:\S+ )?(?:errors?|failures?|stragglers?|nans?|problems?|issues?|faults?|corruption|mismatch\w*)\b|(?:errors?|failures?|failed|retries|nans?|skipped|restarts?|lost|dropped|timeouts?)['\"]?\s*[:=]\s*(?:0\b(?!\.\d)|none\b|\[\]|false\b)|\b0 (?:errors?|failures?|failed|retries|lost|dropped|nans?)",
    r"(?:all|every) (?:\S+ )?(?:health ?)?(?:checks?|tests?|gpus?|nodes?|links?) (?:passed|ok|healthy|up)|\b(?:passed|succeeded|successful\w*|recovered|resolved|completed?)\b(?!.*(?:fail|error|abort|spike|timeout|last completed|not |before|exit))",
    r"^\s*(?:export )?(?:TORCH|NCCL|CUDA|GLOO|UCX|OMP|PYTORCH|HF|FI|HIP|RCCL|XLA)_\w+ ?[=:]|NCCL INFO (?!.*(?:fail|error|async|abort|exceed|mismatch|status=|down|retry))|(?:set by environment|environment variable).* to ",
    r"(?:timeout|time_limit|max_restarts|health_check|monitor\w*|max_retries|tolerance|on_error|preempt\w*|oom\w*)['\"]?\s*[=:]\s*['\"]?[\w.]+['\"]?,?\s*$|^\s*-?-?[\w.]+ ?\.{4,} ?\S+$",
    r"(?:handler|hook|detector|watchdog|checker|monitor\w*|guard) (?:is |was |has been |thread )?(?:registered|installed|enabled|started|initiali[sz]ed|set up|attached|running)|(?:enabling|registering|installing|starting|initiali[sz]ing) .*(?:handler|hook|detect\w*|watchdog|check\w*|monitor\w*)",
    r"Setting OMP_NUM_THREADS|persistence mode|module verification failed|taints kernel|nouveau|DRM-managed",
    r"core dump(?:ed)? to|generating core|^\s*warn(?:ings)?\.warn\(",
    r"is_available\(\)|(?:val|eval|valid|test|train)\w*[ _/](?:error|err|loss)\W+[\d.]+(?!.*(?:nan|inf))$|error[_ ]rate|word error|mean (?:squared|absolute) error|\bWER\b|top-?\d error",
]  # fmt: skip
