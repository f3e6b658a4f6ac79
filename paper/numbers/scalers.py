"""The field's scalers, what was recorded of them, and what goes wrong with them."""

from collections.abc import Callable

from ampsim.core import dialects
from ampsim.peers.laws.judging import ENDS, LAWS, UNASKED
from ampsim.records import Record
from ampsim.testing import known
from ampsim.testing.kit.laws import LAWS as KIT
from figures.quantities import BROKEN, broken_laws, ends
from figures.results import Result
from paper.field import overflows_until, survey
from paper.values import Formula, Number

COUNTING = "growth_waits_for_the_interval"
DELAY = "in force one update later"  # so RoundPipe's package documents it
RESUMED = "a_state_dict_continues_the_run"
CONSTANTS = "constants_that_no_run_could_want_are_refused"
OWN_INTERFACE = {CONSTANTS, "skip_is_reported"}  # what the kit asks for itself, and nobody need have
GRADIENT = "unscale_divides_by_the_scale_of_the_loss"
ASKED = (*BROKEN, "passed", "expected failure")
TITLES = {
    "colossalai": "ColossalAI", "mpx": "mpx", "deepspeed-fp16": "DeepSpeed's FP16 optimizer",
    "deepspeed-unfused": "its unfused one", "megatron-chained": "Megatron's chained one",
}  # fmt: skip


def installed(run: Result) -> list[Record]:
    """Return the others' scalers that the atlas has run."""
    return [row for row in run.records if row["arm"] != "laws" and not row["requirement"].startswith("ampsim")]


def _own(run: Result) -> list[Record]:
    """Return our scalers that the atlas has run."""
    return [row for row in run.records if row["arm"] != "laws" and row["requirement"].startswith("ampsim")]


def _classes(run: Result, *laws: str) -> set[str]:
    """Return the classes that break one of these laws, or a law away from the ends; ours are not among them."""
    found = (
        (row["class"], broken_laws(row) & {*laws} if laws else broken_laws(row) - ends(run)) for row in installed(run)
    )
    return {str(name) for name, broken in found if broken}


def _within(run: Result, laws: set[str]) -> set[str]:
    """Return the classes that break laws away from the ends, and these alone."""
    beyond = {row["class"] for row in installed(run) if broken_laws(row) - ends(run) - laws}
    return _classes(run) - beyond


def counting(run: Result) -> set[str]:
    """Return the classes that break a law away from the ends only by growing at another clean step."""
    return _within(run, {COUNTING})


def late(run: Result) -> set[str]:
    """Return the classes that break only laws that RoundPipe's delay breaks, which its package documents."""
    roundpipe = run.arm("roundpipe").the("laws")
    return _within(run, {law for law, found in roundpipe.items() if DELAY in (found["reason"] or "")}) - counting(run)


def more(run: Result) -> set[str]:
    """Return the classes that break a law away from the ends in another way than by counting, delay or an error."""
    return _classes(run) - counting(run) - late(run) - erring(run)


def _patched(run: Result, classes: set[str]) -> int:
    """Return how many of these classes were driven with a stub."""
    return len({row["class"] for row in installed(run) if row["patched"] and row["class"] in classes})


def _among(run: Result) -> str:
    """Return whether torch's scaler breaks a law away from the ends, in words."""
    return "among them" if "torch" in _classes(run) else "not among them"


def erring(run: Result) -> set[str]:
    """Return the classes that break laws away from the ends only by errors that they raise under a stub."""
    sure = {
        str(row["class"])
        for row in installed(run)
        for law in broken_laws(row) - ends(run)
        if not row["patched"] or not row["laws"][law]["seen"].startswith("raised ")
    }
    return _classes(run) - sure


def _promised(run: Result, whose: str) -> int:
    """Return how many laws of the atlas are promised by torch, by the package, or are ours."""
    return sum(each.partition(":")[0] == whose for each in run.arm("laws").first["promises"].values())


def _cells(run: Result, law: str = "", outcomes: tuple[str, ...] = BROKEN) -> int:
    """Return how many scalers come out so by a law, or by all of them together."""
    found = (row["laws"].items() for row in installed(run))
    return sum(each["outcome"] in outcomes for laws in found for name, each in laws if name == law or not law)


def _in_words(names: set[str]) -> str:
    """Return the titles of scalers in a row."""
    *first, last = (title for name, title in TITLES.items() if name in names)
    if len(first) + 1 != len(names):
        raise KeyError(f"{sorted(names)}: expected a title of each in TITLES")
    return f"{', '.join(first)} and {last}"


def _failed_at(level: int) -> Callable[[], int]:
    """Return a function that counts the checks of a level of the kit that torch's scaler fails."""
    return lambda: sum(KIT[name].level == level for name in known.TORCH)


def _failed_away() -> set[str]:
    """Return the checks that torch's scaler fails by the atlas's rule: away from the ends, and not of our interface."""
    return {*known.TORCH} - ENDS - OWN_INTERFACE


def _atlas(law: str, outcomes: tuple[str, ...] = BROKEN, printed: str = "words") -> Number:
    return Number("atlas", lambda run: _cells(run, law, outcomes), printed)


def _deepspeed() -> list[int]:
    """Return the clean step after a backoff at which each dialect of DeepSpeed grows; the interval is 3."""
    return [row.grows_at for name, row in survey().items() if name.startswith("deepspeed")]


NUMBERS: dict[str, Number | Formula] = {
    "dialects": Formula(lambda: len(survey()), "d"),
    "field.behaviours": Formula(lambda: len(set(survey().values())), "d"),
    "field.late": Formula(lambda: sum(row.grows_at in (4, 5) for row in survey().values()), "words"),
    "field.deepspeed": Formula(lambda: len(_deepspeed()), "words"),
    "field.deepspeed.late": Formula(lambda: sum(step > 3 for step in _deepspeed()), "words"),
    "field.factors": Formula(
        lambda: sum(
            (rule.growth_factor, rule.backoff_factor) != (2.0, 0.5) for rule in map(dialects.get, dialects.names())
        ),
        "words",
    ),
    "field.infinite": Formula(lambda: sum(row.top == "infinite" for row in survey().values()), "words"),
    "field.zero": Formula(lambda: sum(row.bottom == "zero" for row in survey().values()), "d"),
    "field.raises": Formula(lambda: sum(row.bottom == "raises" for row in survey().values()), "words"),
    "field.delayed": Formula(lambda: sum(row.delay == 1 for row in survey().values()), "words"),
    "torch.tiny": Formula(lambda: overflows_until(dialects.get("torch.amp.GradScaler"), 2.0**-128), "d"),
    "torch.zero": Formula(lambda: overflows_until(dialects.get("torch.amp.GradScaler"), 0.0), "d"),
    "atlas.scalers": Number("atlas", lambda run: len(installed(run)), "d"),
    "atlas.packages": Number("atlas", lambda run: len({row["requirement"] for row in installed(run)}), "d"),
    "atlas.keras": Number("atlas", lambda run: sum(row["class"] == "keras-jax" for row in installed(run)), "words"),
    "atlas.patched": Number("atlas", lambda run: sum(bool(row["patched"]) for row in installed(run)), "d"),
    "atlas.laws": Number("atlas", lambda run: len(run.arm("laws").first["sentences"]), "d"),
    "atlas.unasked": Formula(lambda: len(UNASKED), "words"),
    "atlas.histories": Number("atlas", lambda run: run.config["histories"], ",d"),
    "atlas.equal": Number("atlas", lambda run: sum(not row["drift"]["differing"] for row in installed(run)), "d"),
    "atlas.classes": Number("atlas", lambda run: len({row["class"] for row in installed(run)}), "d"),
    "atlas.laws.torch": Number("atlas", lambda run: _promised(run, "torch"), "d"),
    "atlas.laws.package": Number("atlas", lambda run: _promised(run, "the package"), "d"),
    "atlas.laws.ours": Number("atlas", lambda run: _promised(run, "ours"), "d"),
    "atlas.classes.away": Number("atlas", lambda run: len(_classes(run)), "d"),
    "atlas.classes.more": Number("atlas", lambda run: len(more(run)), "words"),
    "atlas.classes.counting": Number("atlas", lambda run: len(counting(run)), "words"),
    "atlas.classes.late": Number("atlas", lambda run: len(late(run)), "words"),
    "atlas.classes.patched": Number("atlas", lambda run: _patched(run, _classes(run)), "words"),
    "atlas.gradient.patched": Number("atlas", lambda run: _patched(run, _classes(run, GRADIENT)), "words"),
    "atlas.classes.erring": Number("atlas", lambda run: len(erring(run)), "words"),
    "atlas.classes.sure": Number("atlas", lambda run: len(_classes(run) - erring(run)), "words"),
    "atlas.torch": Number("atlas", _among, "text"),
    "atlas.constants": _atlas(CONSTANTS, ("expected failure",), "d"),
    "atlas.ours": Number("atlas", lambda run: sum(len(broken_laws(row)) for row in _own(run)), "words"),
    "atlas.live": Number("atlas", lambda run: sum(row["live"] for row in installed(run)), "d"),
    "atlas.gradient.classes": Number("atlas", lambda run: len(_classes(run, GRADIENT)), "words"),
    "atlas.gradient.names": Number("atlas", lambda run: _in_words(_classes(run, GRADIENT)), "text"),
    "atlas.asked": _atlas("", ASKED, ",d"),
    "atlas.broken": _atlas("", printed="d"),
    "atlas.declared": _atlas("", ("expected failure",), "d"),
    "atlas.ends": Number("atlas", lambda run: sum(_cells(run, law) for law in ends(run)), "d"),
    "atlas.below-one": _atlas("never_steps_on_nonfinite_below_scale_one", printed="d"),
    "atlas.below-one.asked": _atlas("never_steps_on_nonfinite_below_scale_one", ASKED, "d"),
    "atlas.resumed": _atlas(RESUMED),
    "atlas.resumed.erring": Number("atlas", lambda run: len(erring(run) & _classes(run, RESUMED)), "words"),
    "traces.count": Number("traces", lambda run: len(run.records), ",d"),
    "traces.repeated": Number("traces", lambda run: sum(row["repeated"] for row in run.records), ",d"),
    "traces.updates": Number("traces", lambda run: sum(row["updates"] for row in run.records), ",d"),
    "kit.checks": Formula(lambda: len(KIT), "d"),
    "kit.torch": Formula(lambda: len(known.TORCH), "d"),
    **{f"kit.torch.level{level}": Formula(_failed_at(level), "words") for level in range(1, 6)},
    "kit.torch.own": Formula(lambda: len(OWN_INTERFACE & known.TORCH.keys()), "words"),
    "kit.torch.away": Formula(lambda: len(_failed_away()), "words"),
    "kit.torch.unasked": Formula(lambda: len(known.TORCH.keys() - LAWS.keys()), "words"),
    "kit.torch.unasked.away": Formula(lambda: len(_failed_away() - LAWS.keys()), "words"),
    "kit.torch.beside": Formula(lambda: len(known.TORCH.keys() - ENDS), "words"),
    "kit.torch.named": Formula(lambda: "; ".join(sorted(_failed_away())).replace("_", " "), "text"),
    "kit.torch.range": Formula(lambda: len(known.TORCH.keys() & ENDS), "words"),
    "claims.device": Number("device_claims", lambda run: len(run.records), "d"),
}
