"""Lines that look like trouble and are none, counters that say 0, and sentences that only advise."""

from __future__ import annotations

__all__ = ["ADVICE", "DECOYS", "ZEROS"]

DECOYS: list[str] = [
    r"\b(?:Future|Deprecation|PendingDeprecation|Resource|User|Runtime|Syntax|Import|Experimental)Warning\b",
    r"PMIX.*(?:NO-PERMISSIONS|ERR_NO_PERM|ERROR: (?:ERROR|NOT-FOUND|UNREACH|OUT-OF-RESOURCE)?\b.* in file)"
    r"|PMIX ERROR",
    r"errno: 97|(?<!creation failed : )address family not supported by protocol|cannot be retrieved"
    r"|hostname of the client socket",
    r"deprecat|is experimental|will be removed in|legacy",
    r"failed to load image python extension|unable to register (?:cu|\w+ factory)|could not find TensorRT"
    r"|TF-TRT Warning|computation_placer|cuDNN factory",
    r"exception ignored in|leaked (?:semaphore|shared_memory)|resource_tracker"
    r"|destroy_process_group\(\) was not called|process group has NOT been destroyed|tokenizers_parallelism"
    r"|huggingface/tokenizers:",
    r"(?:this|which) is not (?:a|an) (?:failure|error|problem)|(?:is|are) expected and harmless"
    r"|can (?:safely )?be ignored|no action (?:is )?(?:required|needed)"
    r"|(?:error|outage|connection) (?:has been |was |is )?resolved|resuming normal operation",
    r"could not find the metadata file|will not load any checkpoints|libibverbs: warning"
    r"|couldn't load driver|apex is not installed|not installed, (?:skipping|falling)|falling back to"
    r"|fall back to",
    r"gradient overflow.*skipping step(?!.*to (?:0|1)(?:\.0)?\b)|OVERFLOW! .*Attempted loss scale: \d{2,}",
    r"(?:all|every) (?:\S+ )?(?:health ?)?(?:checks?|tests?|gpus?|nodes?|links?) (?:passed|ok|healthy|up)"
    r"|^(?!.*(?:fail|error|abort|exception|unable|cannot|killed|lost|refus|den(?:y|ied)|spike|[a-z]Error))"
    r".*\b(?:passed|succeeded|successful\w*|recovered|resolved|completed?)\b(?!.*(?:fail|error|abort|spike"
    r"|timeout|last completed|not |before|exit))",
    r"^\s*(?:export )?(?:TORCH|NCCL|CUDA|GLOO|UCX|OMP|PYTORCH|HF|FI|HIP|RCCL|XLA)_\w+ ?[=:]"
    r"|[NR]CCL INFO (?!.*(?:fail|error|async|abort|exceed|mismatch|status=|down|retry))"
    r"|[NR]CCL INFO (?:NET/Plugin|TUNER/Plugin|PROFILER/Plugin|Plugin)|(?:set by environment"
    r"|environment variable).* to ",
    r"(?:timeout|time_limit|max_restarts|health_check|monitor\w*|max_retries|tolerance|on_error|preempt\w*"
    r"|oom\w*)['\"]?\s*[=:]\s*['\"]?[\w.]+['\"]?,?\s*$|^\s*-?-?[\w.]+ ?\.{4,} ?\S+$",
    r"^\s*(?!\S*(?:err|fail|exception|message|reason|status))[\w.-]+\s*[:=]\s*(?:\{[^{]*\}|\([^(]*\)),?\s*$",
    r"(?:handler|hook|detector|watchdog|checker|monitor\w*|guard) (?:is |was |has been "
    r"|thread )?(?:registered|installed|enabled|started|initiali[sz]ed|set up|attached|running)"
    r"|^\W*(?:enabling|registering|installing|starting|initiali[sz]ing) .{0,30}(?:handler|hook|detect\w*"
    r"|watchdog|check\w*|monitor\w*)",
    r"Setting OMP_NUM_THREADS|persistence mode|module verification failed|taints kernel|nouveau|DRM-managed",
    r"core dump(?:ed)? to|generating core|^\s*warn(?:ings)?\.warn\(",
    r"is_available\(\)|(?:val|eval|valid|test|train)\w*[ _/](?:error|err|loss)\W+[\d.]+(?!.*(?:nan|inf))$"
    r"|error[_ ]rate|word error|mean (?:squared|absolute) error|\bWER\b|top-?\d error",
]

ZEROS: list[str] = [
    r"\bno (?:[\w-]+ ){0,2}(?:errors?|failures?|stragglers?|nans?|problems?|issues?|faults?|corruption|mismatch\w*)\b",
    r"\b\w*(?:errors?|failures?|failed|retries|nans?|skipped|restarts?|lost|dropped|timeouts?)['\"]?\s*[:=]\s*"
    r"(?:0\b(?!\.\d)|none\b|\[\]|false\b)",
    r"(?:^|[,;:(|=>]\s*|\b(?:with|and|had|has|found|got|of|reported|are|were) )0 (?:errors?|failures?|failed|retries"
    r"|lost|dropped|nans?)\b",
    r"\bnumber of (?:nan|skipped) iterations: +0\b",
    r"\b[\w ]{3,40}: +not active\b",
]
"Counters that say that nothing happened; what else stands in their line still counts."

ADVICE: list[str] = [
    r"consider passing CUDA_LAUNCH_BLOCKING|Compile with .?TORCH_USE_CUDA_DSA|TORCH_SHOW_CPP_STACKTRACES"
    r"|might be asynchronously reported",
    r"stacktrace below might be incorrect|for debugging consider|see documentation for memory management"
    r"|max_split_size_mb",
    r"due to the asynchronous nature of CUDA kernels|to avoid (?:data inconsistency|this)"
    r"|taking the entire process down",
    r"(?:this|which) (?:may|might|could|can) (?:also )?(?:be (?:caused|due)|indicate|happen|mean)"
    r"|\bthis (?:usually |often |typically |generally |normally )?(?:indicates|happens|means)\b"
    r"|possible (?:cause|reason)s?|common (?:cause|reason)s?",
    r"if you (?:see|get|want|encounter|are|have|think)|please (?:make sure|check|refer|see|consider|ensure"
    r"|try)|try (?:setting|increasing|reducing|running|using)|you (?:can|may|could|might"
    r"|should) (?:also )?(?:try|increase|set|reduce|use|enable)|^\s*(?:hint|tip|note|help)\b *:",
]
