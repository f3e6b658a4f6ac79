"""Roles of numbers by their names in a log."""

import re
from functools import lru_cache

# Role -> (pattern that a name must contain, pattern that it must not contain). The first role that
# fits is taken.
ROLES = {
    "step": (
        r"^(?:global|train(?:ing|er)?|total|num|current|opt(?:imizer)?|progress)?[_ /]?"
        r"(?:step|steps|iter|iters|iteration|iterations|itr|update|updates|batch|it|b|up\.)$"
        r"|(?:[/.]|(?:^|/)(?:global|grad|gradient|opt\w*|cur\w*|train\w*)[_ ])(?:step|iter|iteration)$",
        r"loss|val|test",
    ),
    "epoch": (r"epoch$|^ep$", r"$^"),
    "skips": (
        r"skip|^overflow(?:[_ ]?cond)?$|^is_overflow$|found_inf",
        r"layer|conn|first|file|sample|token|data|\bratio|attempt|valid|too|long|window|exam|%|frac",
    ),
    "trouble": (
        r"(?:^|num_|(?:number )?of |total[_ ]|n_|has_|is_|found_|any_)"
        r"(?:nans?|infs?|non-?finite|overflow(?:s|ed)?)(?:$|[_ ])",
        r"norm|loss|check|detect|stop|max|min|limit|filter|\b(?:at|for|in|on)\b|(?:batch|step|iter|iteration)$|overflow_",
    ),
    "scale": (
        r"(?:^|[_ /.-])(?:(?:loss|grad|amp|fp16|cost|s)?[_ -]?scal(?:e|er|ing)(?:[_ ]?factor|\(\)|_value)?)$"
        r"|^amp$|^ls$|get_scale|loss[_ ]?scal|grad[_ ]?scale|^amp[_ ]scaler",
        r"lr|learn|rate|img|image|time|resc|logit|guid|temp|lora|weight|batch|window|growth|back|max|min|init|attn"
        r"|reg|multi|height|width|norm|parameter|_power|opt_|hyster|rope|target|inv|next|prev",
    ),
    "rate": (r"(?:^|[_ /.-])(?:lr|learning[_ ]?rate)(?:$|[_ /.\d-])", r"scale|min|max|mult|decay|step"),
    "evaluation": (
        r"(?:^|[_ /.-])(?:val|valid|validation|eval|evaluation|test|dev)\w*.*(?:loss|nll)|loss.*(?:val|eval|test)",
        r"scale|weight|best|min",
    ),
    "loss": (
        r"loss|损失|потер|(?:^|[_ /])nll$|^l$|^xent$|(?:^|[_ ])cross[_ ]?entropy$|^cost$"
        r"|^(?:smooth_?)?l[12]$|^[gd]_(?:gan|l1|real|fake|a|b)$|^l_[a-z]",
        r"scal|weight|lambda|coef|best|min|max|time|norm|lr|count|num|std|var|delta|threshold|patience|clip|ratio"
        r"|in f|stop|aver|avg|(?<!loss_)mean|factor|alpha|beta|gamma|change|improve|prev|old|last|smooth(?!_?l1)"
        r"|skip|nan|tol|limit|\bif\b|nmse|acc|dev|init|target|aux|moe|%|is lower|of$|\bat\b|\bstep$|epoch|iter",
    ),
    "norm": (
        r"grad.*norm$|^(?:train[_/ ])?(?:total[_ ])?norm$|grad\w*[_ ]norm|global[_ ]norm|^gn$|gnorm|norm[_ ]0|^grad$",
        r"param|weight|batch|layer|loss|lr|rms|clip|max|adv|update|feat|input|latent|scale|instance|rel|tok|num|act",
    ),
}  # fmt: skip
_ROLES = {role: (re.compile(yes), re.compile(no)) for role, (yes, no) in ROLES.items()}
# A number whose name begins so is a summary, or belongs to an evaluation.
SUMMARY = re.compile(
    r"^(?:average|avg\.?|mean|best|min|max|lowest|total_time|running|smoothed|scaled|unscaled|weighted|norm|val|valid"
    r"|validation|eval|evaluation|test|dev|final|ema)(?:$|[_ /])"
)
_MEAN_LOSS = re.compile(
    r"^(?:average|avg\.?|mean)[_ ](?:train(?:ing)?[_ ])?loss$|^(?:train[_ /-])?(?:ppl|perplexity)$"
)
# A number of no role with such a name is no loss scale, whatever its values are.
UNRELATED = re.compile(
    r"batch|size|len|dim|hidden|width|worker|token|sample|seq|res|head|rank|world|gpu|mem|buf|step|epoch|iter|scene"
    r"|channel|layer|num|accum|max|min|lr|shape|id$|crop|patch|vocab|time|count|heads|param|port|node|seed|level|freq"
    r"|total|bucket|window|interval|consumed|mb|gb|kb|bytes|core|thread|cpu|precision|bit|every|block|expert|feature"
)
_LOGARITHM = re.compile(r"lg_|log2|log_scale|logscale")


@lru_cache(1 << 14)
def role_of(name: str) -> str:
    """Return the role of a name in lower case: a key of `ROLES`, or "" if it has none."""
    if _MEAN_LOSS.search(name):
        return "mean loss"
    if SUMMARY.search(name) and not _ROLES["evaluation"][0].search(name):
        return ""
    for role, (yes, no) in _ROLES.items():
        if yes.search(name) and not no.search(name):
            return role
    return ""


def is_logarithm(name: str) -> bool:
    """Return whether numbers of this name are base-2 logarithms of a scale."""
    return bool(_LOGARITHM.search(name))


# A name behind such words is none of the training, or is a condition.
_NOT_OF_TRAINING = re.compile(
    r"\b(?:if|when|where|unless|raise|stop|until|previous|prev|last|best|inverse|inv|next|initial|init|bug|fixed|lowest"
    r"|highest|old|target)\b"
)
_QUOTED = re.compile(r"(['\"])\s*,\s*$")
_SEPARATOR = re.compile(r"[,;|\t:=\[\](){}<>'\"]+|\s-+\s|\s{2,}|->")


def name_before(text: str) -> str:
    """Return the name of a number from the text in front of it.

    Args:
        text: The line up to the number, or from the previous number up to it.

    Returns:
        The name in lower case, "" if there is none.
    """
    low = _QUOTED.sub(r"\1", text[-120:].lower().replace("()", ""))
    tail = low.rstrip(" \t:='\"({[|>*-")
    parts = [part.strip() for part in _SEPARATOR.split(tail[-80:])]
    parts = [part for part in parts if part]
    if not parts or (low and not tail) or not tail.endswith(parts[-1][-1:]):
        return ""
    words = parts[-1].split()[-4:]
    if _NOT_OF_TRAINING.search(" ".join(words)):
        return ""
    while (
        len(words) > 1 and not role_of(" ".join(words)) and not SUMMARY.search(words[0])
    ):
        words = words[1:]
    name = " ".join(words).strip("#*_.`").removesuffix(" is").removesuffix(" of")
    # In {"loss": {"total": 2.3}} the outer name says what the inner one is.
    # So it does in "training loss, overall: 2.3".
    nested = "{" in low[-40:] or low.rstrip(" =:").endswith(f", {name}")
    if not role_of(name) and len(parts) > 1 and nested and role_of(parts[-2]):
        return f"{parts[-2]} {name}"
    return name if name[:1].isalpha() or name[:1] in ("_", "$") else ""
