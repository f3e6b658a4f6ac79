"""The tables of results, cell by cell; a cell is text or a number with its path."""

from ampsim.core import dialects
from paper.ledger import Number, Table
from paper.numbers.theory import INTERVALS, real_rate, real_t3


def _real() -> Table:
    def cells(interval: int) -> tuple[str | Number, ...]:
        own, fp32 = f"G={interval}", "fp32"
        return (
            f"${interval}$",
            Number("theory_real", f"100 * {real_rate(interval)}"),
            Number("theory_real", f"100 * {real_t3(interval, own)}"),
            Number("theory_real", f"100 * {real_t3(interval, fp32)}"),
            Number("formulas", f"100 * skip_rate(Rule(growth_interval={interval}))"),
            Number("theory_real", f"mean_level('arm={own} / scales')"),
            Number("theory_real", f"t3_level('arm={own} / ceilings', {interval})"),
            Number("theory_real", f"t3_level('arm={fp32} / ceilings', {interval})"),
        )

    head = ("$G$", "skips", "T3", "T3, fp32", "T1", "$log_2 S$", "T3", "T3, fp32")
    return Table(head, tuple(cells(g) for g in INTERVALS), "rrrrrrrr")


def _sigmoid() -> Table:
    arms = {
        "fp32": "float32", "unscaled": "unscaled", "static 2^4": "fixed $2^4$", "static 2^8": "fixed $2^8$",
        "static 2^12": "fixed $2^12$", "static 2^16": "fixed $2^16$", "static 2^20": "fixed $2^20$",
        "dynamic G=50": "dynamic, $G = 50$", "dynamic G=2000": "dynamic, $G = 2000$",
    }  # fmt: skip

    def cells(arm: str, name: str) -> tuple[str | Number, ...]:
        stem = "sigmoid_underflow"
        losses = tuple(Number(stem, f"{how}('arm={arm} / train_loss')") for how in ("mean", "min", "max"))
        zeros = f"sum('arm={arm} / zero / -1 / *') / sum('arm={arm} / elements / *')"
        return (
            name,
            *losses,
            Number(stem, f"mean('arm={arm} / test_accuracy')"),
            Number(stem, f"lengths('arm={arm} / found_inf') / count('@ / seeds / *')", ",.0f"),
            Number(stem, f"100 * {zeros}", ".0f"),
        )

    head = ("arm", "loss", "min", "max", "accuracy", "skips", "zeros, %")
    return Table(head, tuple(cells(arm, name) for arm, name in arms.items()), "lrrrrrr")


def _held() -> Table:
    """Per theorem: cases and numbers, then the largest error among the exact and among the others."""
    has_exact = {"T1", "T2", "T3", "T4", "T5", "T7", "T10"}
    has_other = {"T1", "T2", "T3", "T6", "T8", "T9"}

    def cells(theorem: str) -> tuple[str | Number, ...]:
        def worst(column: str, which: str) -> Number:
            return Number("theory", f"max('theorem={theorem} / held / tolerance{which}1e-12 / {column}')", "e0")

        return (
            f'#thm("{theorem}")',
            Number("theory", f"count('theorem={theorem}')", "d"),
            Number("theory", f"count('theorem={theorem} / held / *')", "d"),
            worst("error", "=") if theorem in has_exact else "–",
            worst("error", "!=") if theorem in has_other else "–",
            worst("tolerance", "!=") if theorem in has_other else "–",
        )

    head = ("", "cases", "numbers", "exact", "others", "tolerance")
    return Table(head, tuple(cells(f"T{i}") for i in range(1, 11)), "lrrrrr")


def _dialects() -> Table:
    def cells(name: str) -> tuple[str | Number, ...]:
        def cell(column: str, form: str = "text") -> Number:
            return Number("field", f"the('system={name} / {column}')", form)

        return (
            f"`{name}`",
            cell("start", "2^"),
            cell("interval", "d"),
            cell("grows_at", "d"),
            cell("patience", "d"),
            cell("refill"),
            cell("delay", "d"),
            cell("top"),
            cell("bottom"),
        )

    head = ("scaler", "start", "$G$", "grows at", "patience", "refilled by", "delay", "top", "bottom")
    return Table(head, tuple(map(cells, dialects.names())), "lrrcclcll")


def _artefact() -> Table:
    """What each experiment is for, how long it took, and how a rerun is compared."""
    rows = (
        ("theory", "@sec-theory", "exact"),
        ("theory_real", "@sec-theory", "same CPU"),
        ("formats", "@sec-theory", "same CPU"),
        ("threads", "@sec-async", "verdict"),
        ("staleness", "@sec-depth", "exact; same CPU"),
        ("adversary", "@sec-field", "exact"),
        ("exponent_heatmap", "@sec-where", "same CPU"),
        ("sigmoid_underflow", "@sec-sigmoid", "same CPU"),
        ("gpt_fp16", "@sec-gpt", "same CPU"),
        ("growth_interval", "@sec-interval", "same CPU"),
        ("init_scale", "@sec-interval", "same CPU"),
        ("overflow_storm", "@sec-crash", "same CPU"),
        ("scale_crash", "@sec-crash", "same CPU"),
        ("policies", "@sec-policies", "same CPU"),
        ("resnet_fp16", "@sec-gpt", "same CPU"),
        ("static_sweep", "@sec-gpt", "same CPU"),
        ("async_depth", "@sec-depth", "same CPU"),
        ("replay_fidelity", "@sec-performance", "same CPU"),
        ("gradient_histogram", "@sec-gpt", "same CPU"),
        ("conformance", "@sec-field", "exact"),
        ("device_claims", "@sec-limits", "exact"),
        ("overhead", "@sec-performance", "clock"),
        ("probe_overhead", "@sec-performance", "clock"),
        ("replay_speed", "@sec-performance", "clock"),
        ("jax_speed", "@sec-performance", "clock"),
    )
    cells = tuple(
        (f"`{stem}`", where, Number(stem, "the('@ / unit_seconds')", ",.0f"), compare) for stem, where, compare in rows
    )
    return Table(("experiment", "for", "seconds", "compare"), cells, "llrl")


TABLES: dict[str, Table] = {
    "real": _real(),
    "sigmoid": _sigmoid(),
    "held": _held(),
    "dialects": _dialects(),
    "artefact": _artefact(),
}
