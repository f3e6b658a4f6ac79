"""Lines that programs print, and what may be said of a log of them."""

from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.readers.text import read_text

OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale:"
SEARCHED = [f"{OVERFLOW} {2**k}, reducing to {2 ** (k - 1)}" for k in range(16, 8, -1)]
RANK = "[2026-01-01 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0]"
SCALER = (
    "[2026-01-01 10:00:00,000] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
)
SEARCH = [f"{SCALER} Attempted loss scale: {2**k}, reducing to {2 ** (k - 1)}" for k in range(16, 6, -1)]
MEGATRON = (
    " iteration {:8d}/   99999 | learning rate: 1.0E-05 |{} loss scale: 65536.0 | grad norm: {:.3f} "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |"
)
APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to"
BAR = "Steps:   0%|          | {}/2000 [00:14<8:16:07, 14.89s/it, lr=1e-5, step_loss=nan, td=2.85s]"
TRAINER = "{{'loss': {}, 'grad_norm': {}, 'learning_rate': 1e-05, 'epoch': {}}}"
EVALUATED = "{'eval_loss': nan, 'eval_runtime': 0.2, 'epoch': 5.0}"
NOTE = "2026-01-01 NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 8.0"
SWIN = "INFO Train: [{}/2][{}/40]\teta 0:00:03 lr 0.1\tloss {} ({})\tgrad_norm {} (1.5)"
FAIRSEQ = "| train | epoch 001: {} / 1374 loss=14.3, num_updates={}, gnorm=3.9, loss_scale={}, train_loss_scale={}"
STATE = "{{'loss': {}, 'learning_rate': {}, 'epoch': 0.{}}}"


def yolo(*rows):
    """Return the lines of some epochs: the loss, and what the evaluation scores."""
    return [
        line
        for epoch, (loss, score) in enumerate(rows, 1)
        for line in (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
            f"       {epoch}/20     1.16G       {loss}       {loss}       {loss}         16        448: 100%|#| 1/1",
            f"                   all         51         42      {score}      {score}      {score}      {score}",
        )
    ]


Case = tuple[list[str], list[str], list[str]]
"""The lines of a log, what has to be said of it, and what was said of it and is false."""


def hold(case: Case) -> None:
    """Hold what is said of a log against what has to be said, and what must not be."""
    lines, said, unsaid = case
    history = read_text("-", [f"{line}\n" for text in lines for line in text.split("\n")])
    explanation = explain(history)
    text = f"{explanation.verdict}\n{in_words(explanation)}\n{history.rows} rows"
    for part in said:
        assert part in text
    for part in unsaid:
        assert part not in text
