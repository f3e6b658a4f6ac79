"""The trained networks: underflow, a transformer, collapse, other rules."""

from paper.ledger import Claim, Number
from paper.numbers.theory import worst


def _zeros(arm: str, step: int) -> str:
    return f"sum('arm={arm} / zero / {step} / *') / sum('arm={arm} / elements / *')"


SIGMOID = {
    "sigmoid.seeds": Number("sigmoid_underflow", "count('@ / seeds / *')", "words"),
    "sigmoid.unscaled.zero0": Number("sigmoid_underflow", _zeros("unscaled", 0), "%0"),
    "sigmoid.unscaled.zero": Number("sigmoid_underflow", _zeros("unscaled", -1), "%0"),
    "sigmoid.unscaled.loss": Number("sigmoid_underflow", "mean('arm=unscaled / train_loss')"),
    "sigmoid.fp32.loss": Number("sigmoid_underflow", "mean('arm=fp32 / train_loss')"),
    "sigmoid.fp32.min": Number("sigmoid_underflow", "min('arm=fp32 / train_loss')"),
    "sigmoid.fp32.max": Number("sigmoid_underflow", "max('arm=fp32 / train_loss')"),
    "sigmoid.20.skips": Number(
        "sigmoid_underflow",
        "lengths('arm=static 2^20 / found_inf') / (count('@ / seeds / *') * the('@ / config / steps'))",
        "%0",
    ),
    "sigmoid.4.lost": Number("sigmoid_underflow", "above('arm=static 2^4 / train_loss', 1)", "words"),
}
SIGMOID_CLAIMS = {
    "sigmoid.unscaled": Claim("sigmoid_underflow", "min('arm=unscaled / train_loss') > 2.3"),
    "sigmoid.noise": Claim(
        "sigmoid_underflow",
        "abs(mean('arm=dynamic G=50 / train_loss') - mean('arm=fp32 / train_loss'))"
        " < max('arm=fp32 / train_loss') - min('arm=fp32 / train_loss')",
    ),
    "sigmoid.4": Claim("sigmoid_underflow", "above('arm=static 2^4 / train_loss', 1) < count('@ / seeds / *')"),
}


def _loss(arm: str) -> str:
    return f"mean('arm={arm} / test_loss')"


_SAME = ("bf16", "unscaled", "static 2^16", "dynamic G=50", "dynamic G=200", "dynamic G=2000")
_APART = worst(*(f"abs({_loss(arm)} - {_loss('fp32')})" for arm in _SAME))
GPT = {
    "gpt.steps": Number("gpt_fp16", "the('@ / config / steps')", "d"),
    "gpt.unscaled": Number("gpt_fp16", _loss("unscaled")),
    "gpt.fp32": Number("gpt_fp16", _loss("fp32")),
    "gpt.apart": Number("gpt_fp16", _APART),
    "gpt.unscaled.zero": Number("gpt_fp16", "mean('arm=unscaled / zero / *')", "%2"),
    "gpt.global.unscaled": Number("gpt_fp16", _loss("global unscaled")),
    "gpt.global.fp32": Number("gpt_fp16", _loss("global fp32")),
    "gpt.global.dynamic": Number("gpt_fp16", _loss("global dynamic")),
    "gpt.global.unscaled.zero": Number("gpt_fp16", "mean('arm=global unscaled / zero / *')", "%0"),
    "gpt.global.fp32.zero": Number("gpt_fp16", "mean('arm=global fp32 / zero / *')", "%0"),
    "gpt.sum.scale": Number("gpt_fp16", "median('arm=sum / scale_changes / -1 / 1')", "2^"),
    "gpt.sum.skips": Number("gpt_fp16", "lengths('arm=sum / found_inf') / count('@ / seeds / *')", ".0f"),
    "gpt.init32": Number("gpt_fp16", _loss("init 2^32")),
    "gpt.init32.skips": Number("gpt_fp16", "lengths('arm=init 2^32 / found_inf') / count('@ / seeds / *')", ".0f"),
}
GPT_CLAIMS = {
    "gpt.mean": Claim("gpt_fp16", f"{_APART} < 0.03"),
    "gpt.global": Claim(
        "gpt_fp16",
        f"{_loss('global unscaled')} > 1.4 * {_loss('global fp32')}"
        f" and abs({_loss('global dynamic')} - {_loss('global fp32')}) < 0.01",
    ),
    "gpt.inits": Claim(
        "gpt_fp16",
        "min('arm=init 2^32 / test_loss') > max('arm=fp32 / test_loss')"
        f" and abs({_loss('init 2^8')} - {_loss('fp32')}) < 0.01",
    ),
}


def _crashes(precision: str, rate: str) -> str:
    return f"known('arm={precision} lr={rate} / crash_step')"


_RATES = ("0.02", "0.03", "0.035", "0.04", "0.05")


def _sweep(log2: int) -> str:
    return f"mean('arm=static 2^{log2} / test_loss')"


RESNET = {
    "resnet.steps": Number("resnet_fp16", "the('@ / config / steps')", "d"),
    "resnet.unscaled": Number("resnet_fp16", _loss("unscaled")),
    "resnet.fp32": Number("resnet_fp16", _loss("fp32")),
    "resnet.global.unscaled": Number("resnet_fp16", _loss("global unscaled")),
    "resnet.global.dynamic": Number("resnet_fp16", _loss("global dynamic")),
    "resnet.static.worst": Number("resnet_fp16", "max('arm=static 2^16 / test_loss')"),
}
RESNET_CLAIMS = {
    "resnet": Claim(
        "resnet_fp16",
        f"abs({_loss('unscaled')} - {_loss('fp32')}) < 0.1 and abs({_loss('global dynamic')} - {_loss('fp32')}) < 0.1"
        f" and {_loss('global unscaled')} > 2",
    ),
    "sweep.left": Claim("static_sweep", "max('arm=static 2^-16 / test_loss') < 2.5"),
    "sweep": Claim(
        "static_sweep",
        f"max([{', '.join(_sweep(k) for k in (-10, -8, -4, 0, 4, 8, 12, 14, 15, 16))}]) < 1.1 * {_loss('fp32')}"
        f" and {_sweep(-12)} > 1.4 * {_loss('fp32')} and {_sweep(17)} > 1.4 * {_loss('fp32')}",
    ),
}
CRASH = {
    "crash.seeds": Number("scale_crash", "count('@ / seeds / *')", "words"),
    "crash.035": Number("scale_crash", _crashes("fp16", "0.035"), "words"),
    "crash.04.median": Number("scale_crash", "median('arm=fp16 lr=0.04 / crash_step')", "d"),
    "crash.05.median": Number("scale_crash", "median('arm=fp16 lr=0.05 / crash_step')", "d"),
    "crash.fp32.above": Number("scale_crash", "peaks_above('arm=fp32 lr=0.05 / stream_max', 65504)", "words"),
    "crash.fp32.max": Number("scale_crash", "max('arm=fp32 lr=0.05 / stream_max / *')", "e0"),
}
CRASH_CLAIMS = {
    "crash.none": Claim(
        "scale_crash",
        f"{_crashes('fp16', '0.03')} == 0 and {_crashes('fp16', '0.04')} == count('@ / seeds / *')"
        f" and {_crashes('fp16', '0.05')} == count('@ / seeds / *')",
    ),
    "crash.fp32": Claim("scale_crash", " + ".join(_crashes("fp32", rate) for rate in _RATES) + " == 0"),
}


def _policy(name: str, column: str, reducer: str = "mean") -> str:
    return f"{reducer}('policies / {name} / {column}')"


POLICIES = {
    "policies.sd": Number("policies", "mean('ceiling_log2 / 1')", ".1f"),
    "policies.10.skip": Number("policies", _policy("backoff G=10", "skip_rate"), "%1"),
    "policies.2000.skip": Number("policies", _policy("backoff G=2000", "skip_rate"), "%2"),
    "policies.10.room": Number("policies", _policy("backoff G=10", "headroom / 0"), ".1f"),
    "policies.2000.room": Number("policies", _policy("backoff G=2000", "headroom / 0"), ".1f"),
    "policies.headroom.room": Number("policies", _policy("headroom 1 bit", "headroom / 0"), ".1f"),
    "policies.headroom.skips": Number("policies", _policy("headroom 1 bit", "skips", "sum"), "words"),
    "policies.fall": Number("policies", "the('@ / config / fall')", ".0f"),
    "policies.fall.steps": Number("policies", "the('@ / config / fall_steps')", "words"),
    "policies.50.recovery": Number("policies", _policy("backoff G=50", "recovery"), ".0f"),
    "closed.headroom.1": Number("policies", "mean('arm=closed headroom 1 bit / skips')", ".0f"),
    "closed.steps": Number(
        "policies", "mean('arm=closed headroom 1 bit / skips') / mean('arm=closed headroom 1 bit / skip_rate')", ".0f"
    ),
    "closed.logmax": Number("policies", "max('arm=closed LogMax as published / final_loss')"),
    "policies.checked": Number("policies", "sum('checked')", "d"),
    "policies.wrong": Number("policies", "sum('wrong')", "words"),
}
POLICIES_CLAIMS = {
    "policies.headroom": Claim(
        "policies", f"{_policy('headroom 1 bit', 'headroom / 0')} <= {_policy('backoff G=2000', 'headroom / 0')} + 0.1"
    ),
    "closed.headroom": Claim(
        "policies",
        "min('arm=closed headroom 1 bit / skips') > 0 and max('arm=closed headroom 3 bits / skips') == 0",
    ),
    "policies.2000": Claim("policies", _policy("backoff G=2000", "recovery", "known") + " == 0"),
}

NUMBERS: dict[str, Number] = {**SIGMOID, **GPT, **RESNET, **CRASH, **POLICIES}
CLAIMS: dict[str, Claim] = {**SIGMOID_CLAIMS, **GPT_CLAIMS, **RESNET_CLAIMS, **CRASH_CLAIMS, **POLICIES_CLAIMS}
