"""What loss scaling, replay and JAX cost, and what the experiments took."""

from paper.ledger import Claim, Number


def _ratio(size: str, which: str, reducer: str = "median") -> Number:
    return Number("overhead", f"{reducer}('rows / size={size} / ratios / {which} / *')", ".1f")


SMALL, LARGE = "400x1000", "50x400000"
_FLAX = "'rows / * / ratios / flax / *'"
_JMP = "'rows / * / ratios / jmp / *'"


def _replay(column: str) -> Number:
    return Number("replay_speed", f"median('rows / trace=walk / microseconds / {column} / *') / 1000")


def _probe(row: int) -> str:
    return f"median('rows / {row} / ratios / wandb / *')"


def _share(row: int) -> str:
    return f"median('rows / {row} / above / probe / *') / median('rows / {row} / bare / *')"


PERFORMANCE = {
    "overhead.small.cost": _ratio(SMALL, "ours clip cost"),
    "overhead.small.cost.min": _ratio(SMALL, "ours clip cost", "min"),
    "overhead.small.cost.max": _ratio(SMALL, "ours clip cost", "max"),
    "overhead.large.cost": _ratio(LARGE, "ours clip cost"),
    "overhead.large.cost.min": _ratio(LARGE, "ours clip cost", "min"),
    "overhead.large.cost.max": _ratio(LARGE, "ours clip cost", "max"),
    "overhead.large.hooks": _ratio(LARGE, "hooks clip cost"),
    "overhead.small.whole": _ratio(SMALL, "ours clip whole"),
    "overhead.large.whole": _ratio(LARGE, "ours clip whole"),
    "overhead.plain.small": Number("overhead", f"median('rows / size={SMALL} / ratios / ours plain whole / *')"),
    "overhead.plain.large": Number("overhead", f"median('rows / size={LARGE} / ratios / ours plain whole / *')"),
    "replay.fold": _replay("fold"),
    "replay.jump": _replay("replay"),
    "replay.index": _replay("index"),
    "replay.plain": Number("replay_speed", "the('rows / trace=walk / without numba') / 1000", ".1f"),
    "replay.rules": Number("replay_speed", "the('sweep / rules')", ",d"),
    "replay.sweep": Number("replay_speed", "the('sweep / seconds')", ".1f"),
    **{
        f"fidelity.{g}.{what}": Number("replay_fidelity", f"mean('arm=relu / {path} / skips')", ".0f")
        for g in (5, 200)
        for what, path in {"run": f"runs / G={g}", "replay": f"replays / trace=fp32 / interval={g}"}.items()
    },
    "jax.flax": Number("jax_speed", f"max([max({_FLAX}) - 1, 1 - min({_FLAX})])", "%1"),
    "jax.jmp.min": Number("jax_speed", f"min({_JMP})"),
    "jax.jmp.max": Number("jax_speed", f"max({_JMP})"),
    "probe.min": Number("probe_overhead", "min([" + ", ".join(_probe(i) for i in range(4)) + "])", ".0f"),
    "probe.max": Number("probe_overhead", "max([" + ", ".join(_probe(i) for i in range(4)) + "])", ".0f"),
    "probe.share.min": Number("probe_overhead", "min([" + ", ".join(_share(i) for i in range(4)) + "])", "%0"),
    "probe.share.max": Number("probe_overhead", "max([" + ", ".join(_share(i) for i in range(4)) + "])", "%0"),
    "artefact.minutes": Number("runs", "sum('unit_seconds') / 60", ".0f"),
}
PERFORMANCE_CLAIMS = {
    "overhead.plain": Claim("overhead", f"max('rows / size={LARGE} / ratios / ours plain whole / *') < 1.2"),
    "jax": Claim("jax_speed", f"max({_JMP}) < 1"),
}

NUMBERS: dict[str, Number] = {**PERFORMANCE}
CLAIMS: dict[str, Claim] = {**PERFORMANCE_CLAIMS}
