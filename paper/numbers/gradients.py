"""Where gradients lie, the growth interval, the start, storms and formats."""

from paper.ledger import Claim, Number

HEAT = {
    "heat.unscaled.lost": Number("exponent_heatmap", "mean('arm=gpt unscaled / lost / 0')", "%0"),
    "heat.unscaled.rounded": Number("exponent_heatmap", "mean('arm=gpt unscaled / rounded / 0')", "%0"),
    "heat.interval": Number(
        "exponent_heatmap", "the('arm=gpt dynamic / scale_changes / 1 / 0')", "words"
    ),  # the step of the first growth, from scale 1
    "heat.first": Number("exponent_heatmap", "mean('arm=gpt dynamic / found_inf / 0')", ".0f"),
}
HEAT_CLAIMS = {"heat.dynamic": Claim("exponent_heatmap", "max('arm=gpt dynamic / lost / -1') == 0")}


def _product(arm: str) -> str:
    """Skip rate times unused bits of growth_interval."""
    return f"sum('arm={arm} / skips') / sum('arm={arm} / steps') * mean('arm={arm} / headroom / 0')"


_ALIKE = ("G=20", "G=20 a=1 b=3", "G=10 a=0.5 b=0.5", "G=5 a=0.25 b=1", "G=5 a=0.25 b=0.25")
_INTERVAL_LOSSES = ", ".join(f"mean('arm=G={g} / final_loss')" for g in (5, 10, 20, 50, 100, 200, 500, 2000))
INTERVAL = {
    "interval.5.skip": Number("growth_interval", "sum('arm=G=5 / skips') / sum('arm=G=5 / steps')", "%0"),
    "interval.2000.skip": Number("growth_interval", "sum('arm=G=2000 / skips') / sum('arm=G=2000 / steps')", "%1"),
    "interval.5.room": Number("growth_interval", "mean('arm=G=5 / headroom / 0')", ".1f"),
    "interval.2000.room": Number("growth_interval", "mean('arm=G=2000 / headroom / 0')", ".1f"),
    "interval.loss.spread": Number("growth_interval", f"max([{_INTERVAL_LOSSES}]) - min([{_INTERVAL_LOSSES}])"),
    "interval.product.min": Number("growth_interval", f"min([{', '.join(map(_product, _ALIKE))}])", ".3f"),
    "interval.product.max": Number("growth_interval", f"max([{', '.join(map(_product, _ALIKE))}])", ".3f"),
    "init.32.lost": Number("init_scale", "mean('arm=sigmoid 2^32 G=20 / lost_steps')", ".0f"),
    "init.32.foretold": Number("init_scale", "mean('arm=sigmoid 2^32 G=20 / predicted / lost_steps')", ".0f"),
    "init.0.20": Number("init_scale", "mean('arm=sigmoid 2^0 G=20 / left_plateau')", ".0f"),
    "init.16.20": Number("init_scale", "mean('arm=sigmoid 2^16 G=20 / left_plateau')", ".0f"),
    "init.0.50": Number("init_scale", "mean('arm=sigmoid 2^0 G=50 / left_plateau')", ".0f"),
    "init.200.left": Number("init_scale", "known('arm=sigmoid 2^0 G=200 / left_plateau')", "words"),
    "init.200.seeds": Number("init_scale", "count('arm=sigmoid 2^0 G=200 / left_plateau')", "words"),
    "init.steps": Number("init_scale", "the('@ / config / steps')", "d"),
}
INTERVAL_CLAIMS = {
    "interval.loss": Claim("growth_interval", f"max([{_INTERVAL_LOSSES}]) - min([{_INTERVAL_LOSSES}]) < 0.1"),
    "init.200": Claim("init_scale", "known('arm=sigmoid 2^0 G=200 / left_plateau') <= 1"),
}


def _storm(arm: str, reducer: str) -> Number:
    return Number("overflow_storm", f"{reducer}('arm=storm {arm} / test_loss')")


STORM = {
    "storm.2.scale": Number("overflow_storm", "max('arm=storm 2 / scale_changes / -1 / 1')", "2^"),
    "storm.2.min": _storm("2", "min"),
    "storm.2.max": _storm("2", "max"),
    "storm.floor.min": _storm("2 floor=2^8", "min"),
    "storm.floor.max": _storm("2 floor=2^8", "max"),
    "storm.short.min": _storm("2 G=4", "min"),
    "storm.short.max": _storm("2 G=4", "max"),
}
STORM_CLAIMS = {
    "storm": Claim(
        "overflow_storm",
        "min('arm=storm 0.5 / scale_changes / -1 / 1') > 1 and max('arm=storm 2 / scale_changes / -1 / 1') < 1e-9"
        " and min('arm=storm 2 / test_loss') > max('arm=storm 2 floor=2^8 / test_loss')"
        " and min('arm=storm 2 / test_loss') > max('arm=storm 2 G=4 / test_loss')",
    ),
}
FORMATS = {
    "formats.fp16": Number("formats", "max('parameters / formats / fp16 / flushed')", "%1"),
    "formats.e5m2": Number("formats", "max('parameters / formats / e5m2 / flushed')", "%1"),
    "formats.e4m3": Number("formats", "max('parameters / formats / e4m3 / flushed')", "%1"),
    "formats.e4m3.t9": Number("formats", "mean('arm=sigmoid / parameters / formats / e4m3 / predicted')", "%0"),
}
FORMATS_CLAIMS = {
    "formats": Claim(
        "formats",
        "max('arm=sigmoid / parameters / formats / e4m3 / flushed') == max('parameters / formats / e4m3 / flushed')",
    ),
}

_AT = 11  # the scale 2^-14, as a share of 2^22 tokens is, among log2_scales = -36, -34, ...
HISTOGRAM = {
    "hist.rounded": Number("gradient_histogram", f"mean('arm=gpt / rounded_flushed / 0 / {_AT}')", "%0"),
    "hist.real": Number("gradient_histogram", f"mean('arm=gpt / real_flushed / 0 / {_AT}')", "%0"),
    "hist.real.trained": Number("gradient_histogram", f"mean('arm=gpt / real_flushed / 2 / {_AT}')", "%0"),
    "hist.steps": Number("gradient_histogram", "the('arm=gpt / points / 2')", "d"),
    "hist.error.real": Number("gradient_histogram", f"mean('arm=gpt / real_error / 2 / {_AT}')", "%0"),
    "hist.error.rounded": Number("gradient_histogram", f"mean('arm=gpt / rounded_error / 2 / {_AT}')", "%0"),
}
HISTOGRAM_CLAIMS = {
    "hist": Claim(
        "gradient_histogram",
        f"the('log2_scales / {_AT}') == -14 and min('arm=gpt / real_error / 2 / {_AT}') > 1"
        f" and max('arm=gpt / rounded_error / 2 / {_AT}') < 0.1",
    ),
}

NUMBERS: dict[str, Number] = {**HISTOGRAM, **HEAT, **INTERVAL, **STORM, **FORMATS}
CLAIMS: dict[str, Claim] = {**HEAT_CLAIMS, **HISTOGRAM_CLAIMS, **INTERVAL_CLAIMS, **STORM_CLAIMS, **FORMATS_CLAIMS}
