"""Signatures of the training itself, of checkpoints and of data."""

from __future__ import annotations

from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.logs.signatures import Row

__all__ = ["ROWS"]

ROWS: list[Row] = [
    (
        Label.FP16_SCALE,
        "the loss scale of fp16 is used up",
        r"loss[ _]scale .{0,40}(?:minimum|min\b|underflow|zero|too small|below|already at|used up|exhausted"
        r"|lower than|collapsed|dropped to (?:0|1))|minimum (?:loss|gradient) scale|min(?:imum)? loss[ _]scale"
        r"|cannot decrease (?:loss )?scale|loss scal(?:e|er|ing).* to ?(?:0(?:\.0+)?|1(?:\.0)?|[\d.]+e-\d+)\b"
        r"|(?:reducing|decreas\w+|lower\w+|reduced) (?:loss )?scale .*to (?:0(?:\.0+)?|1(?:\.0)?"
        r"|[\d.]+e-\d+)\b|grad(?:ient)? scaler? .*(?:0\.0|zero|underflow|collapsed)|(?:consecutive|all|every"
        r"|too many|\d{2,}) .{0,30}(?:skipped (?:steps|iterations|updates)|overflow(?:s|ed steps)?)\b.*(?:fp16"
        r"|scale|overflow|half)",
    ),
    (
        Label.BAD_RESUME,
        "training went on from another state than it was left in",
        r"(?:resum\w+|restor\w+|re-?load\w+|restart\w*|after (?:the )?(?:restore"
        r"|load))\b.{0,100}(?:loss (?:jump|differ|higher|is higher|mismatch|spike|went up|rose|does not match"
        r"|discontinu)|without (?:the )?(?:optimi[sz]er|rng|scheduler|lr|momentum)|(?:optimi[sz]er|rng"
        r"|scheduler|momentum|sampler|data ?loader)\S*.{0,30}(?:missing|not (?:found|restored|loaded|in)|reset"
        r"|re-?init|fresh|skipp|mismatch|from scratch)|wrong (?:step|iteration|checkpoint|data|epoch)|step 0\b"
        r"|iteration 0\b|different (?:data|seed|order|state|checkpoint|loss)|same (?:data|batches) again)"
        r"|(?:optimi[sz]er|rng|scheduler|lr scheduler|momentum|data ?loader"
        r"|sampler)\S*( state\w*)? .{0,40}(?:not (?:found|restored|loaded|saved) |missing|skipp\w+|reset"
        r"|re-?initiali[sz]ed|from scratch).{0,60}(?:resum|restor|checkpoint|load)|loss .{0,60}(?:after|since"
        r"|on) (?:the )?(?:resum\w+|restor\w+|restart|reload\w*|loading)|loss (?:before|at) (?:save|saving"
        r"|checkpoint).*(?:after|now)|(?:iteration|step|epoch|consumed samples)\S* .{0,40}(?:does not match"
        r"|mismatch|!=|differs?).{0,60}checkpoint|checkpoint .{0,60}(?:step"
        r"|iteration)\S* .{0,30}(?:does not match|mismatch|!=|older than|stale)|stale checkpoint"
        r"|resum\w+ (?:from|at) .{0,40}(?:behind|older|wrong)",
    ),
    (
        Label.CKPT_CORRUPT,
        "a checkpoint cannot be read",
        r"failed (?:reading|finding) (?:zip archive|central directory)|PytorchStreamReader failed"
        r"|not a ZIP archive|File is not a zip file|BadZipFile|bad CRC|CRC[- ]?(?:32)? (?:check )?(?:fail"
        r"|mismatch|error)|invalid load key|UnpicklingError|pickle data was truncated|unpickling stack"
        r"|Ran out of input|SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeader"
        r"|IncompleteMetadata|file might be corrupted|storage has wrong (?:byte )?size"
        r"|unexpected EOF, expected|unexpected pos.*read|(?:checkpoint|ckpt|shard|safetensors|model state"
        r"|optim\S*state|weights? file|snapshot|\.(?:pt|pth|bin|ckpt|distcp|safetensors))\b.{0,80}(?:corrupt"
        r"|truncat|damaged|incomplete|cannot be read|unreadable|(?:checksum|hash|digest|md5|crc"
        r"|sha256).{0,20}(?:mismatch|fail|wrong|differ|not match)|is not a (?:valid )?checkpoint|malformed"
        r"|wrong size|zero bytes|is empty|partial(?:ly)? writ|unexpected end|invalid header|missing shard)"
        r"|(?:corrupt\w*|truncated|damaged|incomplete|unreadable|malformed"
        r"|partial\w*) (?:\S+ ){0,3}(?:checkpoint|ckpt|shard|safetensors|state|snapshot|weights|archive|index"
        r"|manifest)|(?:checksum|hash|digest|md5|sha256|crc)\w* .{0,40}(?:mismatch|fail|differ"
        r"|not match)\w*.{0,80}(?:checkpoint|ckpt|shard|\.pt|\.bin|safetensors|blob|chunk|ocdbt|zarr)"
        r"|truncated file|file signature not found|(?:tensorstore|orbax|ocdbt|zarr).*(?:DATA_LOSS|corrupt"
        r"|error decoding|missing|invalid|not found)|DATA_LOSS|DataLossError|Unable to open file.*truncated"
        r"|zlib\.error|Error -3 while decompress|gzip.*(?:crc|not a gzipp|end-of-stream)|EOFError: Compressed"
        r"|tile \d+ of .* is (?:corrupt|damaged)|No such file.*(?:mp_rank_\d+|\.distcp|\.metadata|__\d+_\d+)"
        r"|CheckpointException|(?:missing|no) (?:rank )?(?:file|shard|part)\S* .{0,30}(?:of|in"
        r"|for) (?:the )?checkpoint",
    ),
    (
        Label.NAN,
        "numbers are not finite any more",
        r"\b(?:nan|inf|infinity|non-?finite|not finite)\b.{0,60}(?:loss|grad|norm|detect|found|encounter"
        r"|output|forward|backward|weight|param|activation|logit|values?|stopping|abort|bucket|batch|step)"
        r"|(?:loss|grad\w*|norm|logits?|activations?|weights?|param\w*|outputs?|tensor)\b.{0,60}(?:\bnans?\b"
        r"|\binf\b|infinity|infinite|non-?finite|not finite)|returned nan values|(?:found|detected|encountered"
        r"|got|produced|contains?|has|have|is|are|became|went) (?:a |an |all |some |any "
        r"|the )?(?:\S+ )?(?:nans?|infs?|infinit\w+|non-?finite)\b(?! (?:check|values are))|FloatingPointError"
        r"|(?:nan|inf) or (?:inf|nan)|probability tensor contains either|contains? (?:nan|inf)|check_for_nan"
        r"|nan_in_grad|number of nan iterations: +[1-9]",
    ),
    (
        Label.SPIKE_RECOVERED,
        "the loss rose and came back",
        r"(?:loss|grad\w*) .{0,20}spike.{0,80}(?:recover|back to|returned|went away|resolved|came (?:back"
        r"|down)|settled|normal)|(?:recover\w*|back to normal|back down).{0,40}spike",
        Owner.DATA,
        Action.WARN,
    ),
    (
        Label.DIVERGENCE,
        "the loss rises and stays",
        r"\b(?:diverg(?:ed|ing|ence|es)|blow(?:s|ing|n)? up|explod(?:ed|ing))\b.{0,60}(?:loss|training|stop"
        r"|abort|step|run|lr|learning)|(?:loss|training|run|model)\b.{0,60}\b(?:diverg(?:ed|ing|ence|es)"
        r"|blew up|blow(?:s|n|ing)? up|explod(?:ed|es|ing)|not (?:converg|recover)\w*|does not (?:come"
        r"|go) down|exceed(?:s|ed)? (?:the )?(?:threshold|limit|max)|(?:rose|rising|increas\w+) .{0,30}(?:stay"
        r"|never|not (?:come|recover)|for \d+ steps))|loss (?:spike )?.{0,30}(?:did not|never"
        r"|has not) (?:recover|come)",
    ),
    (
        Label.METRIC_LOST,
        "a metric is not reported any more",
        r"loss (?:is )?(?:not|no longer) (?:being )?(?:reported|logged|printed)|no loss (?:reported"
        r"|logged) (?:for|since)",
    ),
    (
        Label.USER_CODE,
        "the program reads text without saying how it is encoded",
        r"'(?:charmap|ascii|gbk|latin-1|cp\d+)' codec can't (?:de|en)code",
    ),
    (
        Label.USER_CODE,
        "a sample of the data cannot be read",
        r"UnidentifiedImageError|image file is truncated|JSONDecodeError|UnicodeDecodeError"
        r"|Parquet magic bytes|ArrowInvalid|tarfile\.\w*Error|DatasetGenerationError|CastError|(?:sample"
        r"|record|dataset|data file|tfrecord|example|mmap|\.idx|\.jsonl?|\.parquet|\.tar)\b.{0,60}(?:corrupt"
        r"|malformed|truncated|invalid|unreadable|cannot be (?:read|decoded|parsed)|bad line|damaged)"
        r"|corrupt\w* (?:\S+ ){0,2}(?:sample|record|image|example|row|line|data|jpeg|input)"
        r"|mmap length is greater than file size|error (?:decoding|parsing) (?:sample|record|example|image"
        r"|line)",
        Owner.DATA,
        Action.STOP_USER,
    ),
]
