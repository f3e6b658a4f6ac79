"""What a race between threads costs."""

from figures.quantities import half_width, race_costs
from figures.results import Array, Result
from paper.values import Number


def _test_costs(run: Result, interval: int) -> Array:
    """Return how much more test loss torch's shared scaler ends with than ours, per seed, nats."""
    ours, torchs = (run.arm(f"{whose} G={interval}").numbers("test_loss") for whose in ("ampsim", "torch"))
    return torchs - ours


def _margins(run: Result) -> list[float]:
    """Return by how much the intervals of the four mean differences of losses leave out zero, those that do."""
    samples = [sample for g in run.config["growth_intervals"] for sample in (race_costs(run)[g], _test_costs(run, g))]
    margins = [abs(float(sample.mean())) - half_width(sample) for sample in samples]
    return [margin for margin in margins if margin > 0]


def _share_of_passes(run: Result, arm: str, column: str) -> float:
    """Return which share of all passes of an arm a column counts."""
    return float(sum(run.arm(arm).column(column)) / (len(run.seeds) * run.config["steps"]))


NUMBERS: dict[str, Number] = {
    "race.apart": Number("threads_loss", lambda run: len(_margins(run)), "words"),
    "race.margin": Number("threads_loss", lambda run: max(_margins(run)), ".4f"),
    "race.seeds": Number("threads_loss", lambda run: len(run.seeds), "words"),
    "race.train": Number("threads_loss", lambda run: int((race_costs(run)[5] > 0).sum()), "words"),
    "race.50.train": Number("threads_loss", lambda run: int((race_costs(run)[50] > 0).sum()), "words"),
    "race.test.mean": Number("threads_loss", lambda run: float(_test_costs(run, 5).mean()), ".4f"),
    "race.test.half": Number("threads_loss", lambda run: half_width(_test_costs(run, 5)), "<=.4f"),
    "race.50.test.mean": Number("threads_loss", lambda run: float(_test_costs(run, 50).mean()), ".4f"),
    "race.50.test.half": Number("threads_loss", lambda run: half_width(_test_costs(run, 50)), "<=.4f"),
    "race.errors": Number("threads_loss", lambda run: _share_of_passes(run, "torch G=5", "errors"), "%1"),
    "race.50.errors": Number("threads_loss", lambda run: _share_of_passes(run, "torch G=50", "errors"), "%1"),
    "race.mean": Number("threads_loss", lambda run: race_costs(run)[5].mean(), ".4f"),
    "race.half": Number("threads_loss", lambda run: half_width(race_costs(run)[5]), "<=.4f"),
    "race.loss": Number("threads_loss", lambda run: run.arm("ampsim G=5").mean("train_loss"), ".3f"),
    "race.50.wrong": Number("threads_loss", lambda run: _share_of_passes(run, "torch G=50", "wrong"), "%1"),
    "race.50.mean": Number("threads_loss", lambda run: race_costs(run)[50].mean(), ".4f"),
    "race.50.half": Number("threads_loss", lambda run: half_width(race_costs(run)[50]), "<=.4f"),
    "race.50.loss": Number("threads_loss", lambda run: run.arm("ampsim G=50").mean("train_loss"), ".3f"),
}
