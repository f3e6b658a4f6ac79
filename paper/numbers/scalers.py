"""The field's scalers, what was recorded of them, and what goes wrong with them."""

from paper.ledger import Claim, Number

DEPTHS = (1, 2, 4)

FIELD = {
    "dialects": Number("field", "count('system')", "d"),
    "field.behaviours": Number("field", "distinct('behaviour')", "d"),
    "field.late": Number("field", "count('grows_at=4')", "words"),
    "field.infinite": Number("field", "count('top=infinite')", "words"),
    "field.zero": Number("field", "count('bottom=zero')", "d"),
    "field.raises": Number("field", "count('bottom=raises')", "words"),
    "field.delayed": Number("field", "count('delay=1')", "words"),
    "traces.count": Number("traces", "count('system')", ",d"),
    "traces.repeated": Number("traces", "sum('repeated')", ",d"),
    "traces.updates": Number("traces", "sum('updates')", ",d"),
}
FIELD_CLAIMS = {
    "traces.all": Claim("traces", "sum('repeated') == count('system')"),
    "traces.every-dialect": Claim("traces", "distinct('system') == 34"),
}

# defects, threads

_FAMILIES = (
    "0, 1, 2 ... overflows, then clean",
    "long runs of overflow",
    "growth at the top",
    "huge gradients below scale 1",
    "subnormal gradients",
    "overflow and clean in turns",
)


def _over_families(scaler: str, column: str) -> str:
    return " + ".join(f"sum('arm={scaler}: {family} / {column}')" for family in _FAMILIES)


DEFECTS = {
    "adversary.sweep": Number("adversary", f"the('arm=torch: {_FAMILIES[0]} / trace_died')", "d"),
    "adversary.steps": Number("adversary", "the('@ / config / steps')", ",d"),
    "adversary.first": Number("adversary", f"the('arm=torch: {_FAMILIES[0]} / first_corruption')", "d"),
    "adversary.torch": Number("adversary", _over_families("torch", "corruptions"), ",d"),
    "adversary.total": Number("adversary", _over_families("torch", "steps"), ",d"),
    "torch.zero": Number("formulas", "overflows_until(dialect('torch.amp.GradScaler'), 0.0)", "d"),
    "threads.interval": Number("threads", "the('@ / config / growth_interval')", "words"),
    "threads.torch.1": Number("threads", "sum('arm=torch depth 1 / wrong') / sum('arm=torch depth 1 / checked')", "%0"),
    "threads.torch.4": Number("threads", "sum('arm=torch depth 4 / wrong') / sum('arm=torch depth 4 / checked')", "%0"),
    "threads.ours.checked": Number(
        "threads", " + ".join(f"sum('arm=ampsim depth {k} / checked')" for k in DEPTHS), ",d"
    ),
}
DEFECT_CLAIMS = {
    "adversary.ours": Claim("adversary", f"{_over_families('ampsim', 'corruptions')} == 0"),
    "threads.ours": Claim("threads", " + ".join(f"sum('arm=ampsim depth {k} / wrong')" for k in DEPTHS) + " == 0"),
}

KIT = {
    "kit.checks": Number("conformance", "count('arm=torch / checks / *')", "d"),
    "kit.torch": Number("conformance", "count('arm=torch / failed / *')", "words"),
    "kit.ours": Number(
        "conformance", "count('arm=ampsim / checks / *') - sum('arm=ampsim / counts / passed')", "words"
    ),
    "claims.device": Number("device_claims", "count('holds')", "d"),
}
KIT_CLAIMS = {"kit": Claim("conformance", "the('arm=ampsim / counts / passed') == count('arm=ampsim / checks / *')")}

NUMBERS: dict[str, Number] = {**FIELD, **DEFECTS, **KIT}
CLAIMS: dict[str, Claim] = {**FIELD_CLAIMS, **DEFECT_CLAIMS, **KIT_CLAIMS}
