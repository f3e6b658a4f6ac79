"""Make `public_extracts.jsonl.xz` of public logs: numbers, printed keys and known words, no prose.

AMPSIM_PUBLIC_LOGS names a folder of the logs of `public_logs.jsonl`.
Of 771 logs 364 were had, among them 101 of the 169 sick ones. Extracted are 256: 109 healthy, 48 of
which people could not tell, and 99 sick. The others are longer than there is room for, or
notebooks; none was read otherwise.
"""

import gzip
import hashlib
import json
import lzma
import os
import re
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from ampsim.runs import explain
from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.read.history import NothingReadError

HERE = Path(__file__).parent
BUDGET, LONGEST, LINES = (
    1_990_000,
    60_000,
    345_000,
)  # compressed bytes of all and of one; lines
STEMS = """
acc acc1 accumulation accuracy act activation adagrad adam adamw adjust adv after all allocated
alpha already amp an and any apex are arg arguments array at attempt attention attribute auc auroc
autocast aux available average avg backoff backward base batch bbox bce be becomes before begin
best beta bf16 bfloat16 bits bleu bool box bpp bsz but by cached call cannot ce center cer change
check checkpoint class client clip clipping cls coef coeff cond config convert cost count cpu
criterion critical cross crossentropy csv cuda cur current currently data dataset day debug decay
decoder decreas decrease deepscale deepspeed default detected dev device dfl dice dict diff disable
disc discriminator dist div diverged division done double downscale drop dropout dropping dtype due
dur duration dynamic each early either elapsed element ema embedding enable encoder encountered end
entropy ep epoch eps error eta eval evaluat every exception exit expected experiment f1 factor
false fatal feat finished finite first fix float float16 float32 flops flow fm focal fold for
forward found fp16 fp32 fp8 frame free from full func function gamma gate gb gen generator get gib
giou global gnorm good got gpu grad gradient gradscale growth half halve handling has have head
hidden high highest hinge hour http hyper hysteresis if ignor image img implemented import in
increas inf infinite infinity info ing init initial initialized instance int interval invalid
inverse iou ips is it item iter iteration its json jsonl key kl kld l1 l2 label lamb lambda large
last latent layer learning length limit lion list lm load local log logging long loop loss
lossscale low lr lrate mae main map mar margin mask max maximum mb mean median mel mem memory
metric micro min mini minimum minute miou mixed mlm mode model module moe momentum mps ms mse must
name nan native new next nfe nll nn no node non norm not np ns null num number numpy obj object
objective of old on only optimizer options or other out overflow param parameter patience pct peak
per percent perplexity phase pid pitch pix pl plain policy ppl precision pred predict previous
probability progress psnr py raise rank rate ratio reached reader recall recon reduc reduction reg
requires reserved reset result resume returned reward rpn run runtime same sample sav scal scalar
scaler scheduler sec second seed sequence set setting sgd shape should since size skip skipp small
smoothing speed ssim stage start stat static status std step still stop stopping str sum summary
supported table target task tensor test text tf32 tflops that the this threshold throughput time to
tok token tolerance too top top1 top5 torch total traceback train trainable trial triplet true
tuple txt type underflow unscale up update upscale us use using val valid validation value var
version wall warmup warn was wd weight wer when while window with without worker world wpb wps wt
xx yet zero
"""
VOCABULARY = re.compile(
    rf"(?:{'|'.join(STEMS.split())})(?:s|e|es|d|ed|er|r|ing|ion|ions|al|n)?"
)
CHAIN = r"(?<![\w@])(?a:[A-Za-z_]\w*(?:[/.-][A-Za-z_]\w*)*)(?!\w)"
VALUE = r"""["'\[({]* *[-+]?[\d.]|[\[({]|(?i:nan|inf|true|false|none)\b"""
COLON = r":(?!\d{3,6}(?![\d.])|\d+:|//)"  # not in front of a port
KEY = rf"{CHAIN}(?=['\"] *:| *(?:=(?!=)|{COLON})[ \t]*(?:{VALUE}))"
KEY += rf"|(?=[a-z_]){CHAIN}(?=[ \t]+[-+]?\.?\d)"
PATH = r"(?:(?<![\w)\]])|(?<=\w:)|(?<=\w:/))[~.]*[/\\](?![nrt\"/])[\w.@+~=,-]+"
PATH += r"(?:[/\\]+[\w.@+~=,-]*)*"
TOKEN = re.compile(
    r"(?P<kept>\x1b\[[0-9;?]*[A-Za-z]|\\[nrtbf])|(?P<host>\d+\.\d+\.\d+\.\d+)"
    r"|(?P<number>(?<!\w)(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w))"
    rf"|(?P<path>{PATH})|(?P<key>{KEY})|(?P<word>\w*[^\W\d]\w*)"
)
WORD = re.compile(r"(?:\\[nrtbf])?([^\W\d]\w*)")
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_a-zA-Z]+")
PLAIN = re.compile(
    r"[xX_0-9\uff58]+|\d+T\d+Z?|[A-Za-z_]\d{0,2}|\d+[A-Za-z]|\d*kB|(?:nan|inf)x+"
)
FILE = re.compile(
    r"\.(?:py|log|txt|out|err|jsonl?|cc?|cpp|cuh?|sh|ya?ml|pth?|so|h|md|bin)$"
)
HASH = re.compile(r"(?=\w*\d)[0-9a-f]{7}")


@lru_cache(100_000)
def known(word: str) -> bool:
    """Return whether a word stays wherever it stands."""
    parts = (
        (PARTS.findall(word) or ["?"]) if not VOCABULARY.fullmatch(word.lower()) else ()
    )
    return bool(PLAIN.fullmatch(word)) or all(
        VOCABULARY.fullmatch(each.lower()) for each in parts
    )


def hidden(word: str) -> str:
    """Return a word that stays, or as long a placeholder."""
    word = (
        word if known(word) else re.sub(r"[a-z0-9]", "x", re.sub(r"[A-Z]", "X", word))
    )
    return re.sub(r"[^\x00-\x7f]", "\uff58", word)


def extract(text: str, keys: set[str]) -> str:
    """Return what stays of a text; `keys` gets the words that stay because they name a number."""

    def shown(found: re.Match[str]) -> str:
        token, kind = found[0], found.lastgroup
        if kind == "key" and not FILE.search(token) and not HASH.search(token):
            keys.update(word for word in WORD.findall(token) if not known(word))
        elif kind not in ("kept", "number"):
            token = re.sub(r"\w+", lambda word: hidden(word[0]), token)
        return token if kind != "host" else "0.0.0.0"  # noqa: S104

    return TOKEN.sub(shown, text)


def said(path: Path) -> tuple[str, int]:
    """Return the verdict on a log, and how many steps were skipped at least."""
    try:
        explanation = explain(path)
    except NothingReadError:
        return "nothing read", 0
    return explanation.verdict, Evidence(explanation.history).skips_at_least


def record_of(log: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Return the record of a log; None if it is not there, or its extract is read otherwise."""
    data, keys = path.read_bytes() if path.exists() else b"", set[str]()
    if hashlib.sha256(data).hexdigest() != log["sha256"] or path.suffix == ".ipynb":
        return None
    if len(gzip.compress(data, 6)) > 2 * LONGEST:
        return None
    text = extract(data.decode(errors="replace"), keys)
    with tempfile.TemporaryDirectory() as folder:
        (copy := Path(folder, path.name)).write_bytes(text.encode())
        if said(copy) != said(path):
            return None
    names = ("id", "verdict", "skips_at_least", "skips_at_most", "sha256")
    return {name: log[name] for name in names if name in log} | {
        "keys": sorted(keys),
        "text": text,
    }


def main() -> None:
    """Write the extracts of sick logs, then of others, the shortest first, while there is room."""
    logs = [
        json.loads(line)
        for line in (HERE / "public_logs.jsonl").read_text().splitlines()
    ]
    made = [
        record_of(log, Path(os.environ["AMPSIM_PUBLIC_LOGS"], log["file"]))
        for log in logs
    ]
    sizes = list[tuple[bool, int, int]]()
    for at, record in enumerate(made):
        if record:
            size = len(gzip.compress(json.dumps(record).encode(), 9))
            sizes.append((record["verdict"] != "wrong", size, at))
    taken, room, lines = dict[int, dict[str, Any]](), BUDGET, LINES
    for _, size, at in sorted(sizes):
        record = made[at] or {}
        if size <= min(room, LONGEST) and record["text"].count("\n") <= lines:
            room, lines = room - size, lines - record["text"].count("\n")
            taken[at] = record
    text = "".join(
        json.dumps(taken[at], ensure_ascii=False) + "\n" for at in sorted(taken)
    )
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (HERE / "public_extracts.jsonl.xz").write_bytes(packed)
    print(
        Counter(record["verdict"] for record in taken.values()), LINES - lines, "lines"
    )


if __name__ == "__main__":
    main()
