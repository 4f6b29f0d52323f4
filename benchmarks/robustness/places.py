"""In which parts of a step a fault lies, by what its author wrote beforehand: its category, and the locus of its key.

The rule was written before any run was judged by it. A part is right where either names it; labels and inputs are both
the batch.
"""

import json
import re
from pathlib import Path

BATCH = ("data", "labels")
OF_CATEGORY = {
    "data": BATCH,
    "loss": ("loss", "labels"),
    "architecture": ("model",),
    "initialisation": ("model",),
    "optimizer": ("update", "gradient"),
    "public issues: tokens": BATCH,
    "public issues: loss": ("loss", "labels"),
    "public issues: rates": ("update",),
    "public issues: scale": ("loss", "gradient"),
    "public issues: positions": ("data", "model"),
    "public issues: adapters": ("model",),
    "public issues: mixtures": ("model", "loss"),
}
"""By how a category begins."""
OF_LOCUS = (
    (r"\bloss|cross_entropy|reduction|kl_div|formula|entropy", ("loss",)),
    (r"label|targets?\b(?! network)|\btags?\b|completion_mask|\[:, |column|input|batch|\bdata\b|data set|rows", BATCH),
    (r"pairs|loader|sampler|adjacency|collat|states in|tokens\[|\bids?\b|Data\b|words\(|augmentation", BATCH),
    (r"x\[|y\[|answers\[", BATCH),
    (r"advantage|reward|returns|reference|chosen", (*BATCH, "loss")),
    (r"gradient|backward|clip|zero_grad|\.grad\b", ("gradient",)),
    (r"optimi[sz]er|update|\brate|schedul|\blr\b|betas|decay|\bstep\b|learning_rate", ("update",)),
    (r"weights?\b|parameters|module|block|layer|attention|encoder|embedding|head|norm|lora|BatchNorm|Dropout|Linear|"
     r"Conv|expert|router|rotary|cell|forward|activation|output|matri|body|core|words$|places|tokens$|teacher|lm_head|"
     r"position|running_|buffers|init|\.weight|codes|first|last|rnn|GRU", ("model",)),
)  # fmt: skip
"""Words of a locus, and the parts they stand for."""


def parts_of(name: str, category: str) -> set[str]:
    """Parts of a step, any of which is the right place of a fault."""
    found = {part for begins, parts in OF_CATEGORY.items() if category.startswith(begins) for part in parts}
    for pattern, parts in OF_LOCUS:
        if re.search(pattern, _loci().get(name, ""), re.IGNORECASE):
            found |= set(parts)
    return found


_known: dict[str, str] = {}


def _loci() -> dict[str, str]:
    """The locus of every fault, from the authors' keys."""
    if not _known:
        for file in sorted((Path(__file__).parent / "loops").glob("*_keys.json")):
            for name, key in json.loads(file.read_text()).items():
                if isinstance(key, dict) and "locus" in key:
                    _known[name] = str(key["locus"])
    return _known
