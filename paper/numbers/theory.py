"""The theorems, the real run that T3 foretells, and what depth costs."""

from paper.ledger import Claim, Number

DEPTHS = (1, 2, 4)
INTERVALS = (5, 10, 20, 50, 100)  # of theory_real


def worst(*paths: str) -> str:
    """The largest of some paths' values."""
    return f"max([{', '.join(paths)}])"


def _case(arm: str, name: str, column: str) -> str:
    return f"the('arm={arm} / held / name={name} / {column}')"


def real_rate(interval: int) -> str:
    """The measured skip rate of theory_real; its records leave the warm-up out."""
    return f"the('arm=G={interval} / skipped') / (the('@ / config / steps') - the('@ / config / warmup'))"


def real_t3(interval: int, ceilings: str) -> str:
    """T3's skip rate there, from the run's own ceilings or the float32 run's."""
    return f"t3_rate('arm={ceilings} / ceilings', {interval})"


_RANKS = "T3 b: 1024 ranks, sigma=2, G=2000"
_SPIKE = "T4: 10 bits, 10 steps, G=2000"
_LEVEL = "abs(mean_level('arm=G={0} / scales') - t3_level('arm=G={0} / ceilings', {0}))"
THEORY = {
    "theory.cases": Number("theory", "count('arm')", "d"),
    "theory.exact.worst": Number("theory", "max('held / tolerance=1e-12 / error')", "e0"),
    "t1.default": Number("formulas", "skip_rate(Rule())", "%5"),
    "t1.default.in": Number("formulas", "1 / skip_rate(Rule())", ".0f"),
    "t3.quantile": Number("formulas", "tracked_quantile(2000)", "%3"),
    "t3.ranks.closed": Number("theory", _case(_RANKS, "bits lost", "predicted")),
    "t3.ranks.exact": Number("theory", _case(_RANKS, "bits lost", "measured")),
    "t4.skips": Number("theory", _case(_SPIKE, "skips", "measured"), "words"),
    "t4.steps": Number("theory", _case(_SPIKE, "steps", "measured"), ",d"),
    "t8.critical.in": Number("formulas", "1 / critical_bad_rate(Rule())", ",.0f"),
    "t8.drift.800": Number("theory", _case("T8: lambda=1e-3, G=800", "bits a step", "measured"), "e2"),
    "t8.drift.800.closed": Number("theory", _case("T8: lambda=1e-3, G=800", "bits a step", "predicted"), "e2"),
    "t8.drift.2000": Number("theory", _case("T8: lambda=1e-3, G=2000", "bits a step", "measured"), "e2"),
    "t8.best.worst": Number("theory", "max('theorem=T8 / held / name=G / error')", "%0"),
    "t9.5": Number("theory", _case("T9: sigma=5, 0 bits", "share", "measured"), "e1"),
    "t9.8": Number("theory", _case("T9: sigma=8, 0 bits", "share", "measured"), "%0"),
    "t10.1": Number("theory", _case("T10: G=50, H=1, refilled at growth", "skip rate", "measured"), "%2"),
    "t10.2": Number("theory", _case("T10: G=50, H=2, refilled at growth", "skip rate", "measured"), "%2"),
    "real.steps": Number("theory_real", "the('@ / config / steps') - the('@ / config / warmup')", ",d"),
    "real.worst": Number(
        "theory_real", worst(*(f"abs({real_rate(g)} / {real_t3(g, f'G={g}')} - 1)" for g in INTERVALS)), "%0"
    ),
    "real.worst.fp32": Number(
        "theory_real", worst(*(f"abs({real_rate(g)} / {real_t3(g, 'fp32')} - 1)" for g in INTERVALS)), "%0"
    ),
    "real.level.worst": Number("theory_real", worst(*(_LEVEL.format(g) for g in INTERVALS))),
    "real.unforeseen": Number("theory_real", "sum('unforeseen')", "words"),
    "real.correlation.min": Number("theory_real", "min('ceiling_correlation')"),
    "real.correlation.max": Number("theory_real", "max('ceiling_correlation')"),
}
THEORY_CLAIMS = {"theory.exact": Claim("theory", "max('held / tolerance=1e-12 / error') < 1e-12")}

# depth

_LOSSES = [
    f"abs(mean('arm={policy} k={k} / final_loss') - mean('arm={policy} k=0 / final_loss'))"
    for policy in ("cumulative", "deduplicated", "probe")
    for k in DEPTHS
]
DEPTH = {
    "stale.cumulative.4.headroom": Number("staleness", "mean('arm=cumulative k=4 / headroom')", ".1f"),
    "stale.cumulative.0.headroom": Number("staleness", "mean('arm=cumulative k=0 / headroom')", ".1f"),
    "stale.dedup.4.skip": Number("staleness", "mean('arm=deduplicated k=4 / skip_rate')", "%1"),
    "stale.cumulative.4.skip": Number("staleness", "mean('arm=cumulative k=4 / skip_rate')", "%1"),
    "stale.loss.spread": Number("staleness", worst(*_LOSSES), ".3f"),
}
ASYNC = {
    "async.0": Number("async_depth", "mean('arm=depth 0 / test_loss')"),
    "async.4": Number("async_depth", "mean('arm=depth 4 / test_loss')"),
    "async.scale.4": Number("async_depth", "mean('arm=scale 4 / test_loss')"),
}
ASYNC_CLAIMS = {
    "async.scale": Claim(
        "async_depth",
        "abs(mean('arm=scale 4 / test_loss') - mean('arm=depth 0 / test_loss'))"
        " < 0.2 * (mean('arm=depth 4 / test_loss') - mean('arm=depth 0 / test_loss'))",
    ),
    "async.same": Claim(
        "async_depth",
        "sum('unlike_model') == 0 and listed('arm=depth 4 / digest') == listed('arm=depth 4 latest / digest')",
    ),
}
DEPTH_CLAIMS = {"stale.loss": Claim("staleness", f"{worst(*_LOSSES)} < 0.01")}

NUMBERS: dict[str, Number] = {**THEORY, **DEPTH, **ASYNC}
CLAIMS: dict[str, Claim] = {**THEORY_CLAIMS, **DEPTH_CLAIMS, **ASYNC_CLAIMS}
