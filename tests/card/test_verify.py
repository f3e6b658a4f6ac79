"""What `verify` says of a file: each fault that is planted is named."""

import copy
import itertools
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ampsim.card import claims, probes
from ampsim.card.run import PROBES
from ampsim.card.verify import mismatch, verify, write
from ampsim.core.files import DamagedFileError

RUN = {
    "name": "torch", "rule": {"init_scale": 16.0, "growth_interval": 2}, "depth": 0,
    "found_inf": [True, False, False, True, False], "skipped": [True, False, False, True, False],
    "scale": [16.0, 8.0, 8.0, 16.0, 8.0], "loss": [3.0, 3.0, 2.0, 2.0, 1.0],
}  # fmt: skip
SIZE = {"waits": {"ours, fused step": 0}, "ratios": {"ours, fused step": 1.5}}
FACTS = {"a GEMM overflows at": 65520.0, "a GEMM's sum may pass 65504": 65504.0}
FACTS |= {"a GEMM keeps a subnormal factor": True, "a GEMM keeps a subnormal result": True}
GOOD: dict[str, dict[str, object]] = {
    "kit torch": {"checks": {}, "findings": {}}, "kit ampsim": {"checks": {}, "findings": {}},
    "streams": {"differing": [], "trajectories": [{**RUN, "name": "schedule 0"}]},
    "fused step": {"runs": 1, "differing": []},
    "gpt small": {"trajectories": [RUN]}, "gpt2-small": {"trajectories": [RUN]},
    "arithmetic": {"facts": {name: [value, 0] for name, value in FACTS.items()}, "differing": []},
    "overhead": {"sizes": {"small": {}, "large": SIZE}},
}  # fmt: skip


EARLIER = Path(__file__).with_name("earlier.jsonl")  # made at 0be32493, before this code was made smaller


def written(path: Path, found: dict[str, dict[str, object]], device: str = "cuda", frozen: str = claims.SHA256) -> Path:
    who = {"device": {"type": device}, "claims_sha256": frozen, "probes": [*PROBES]}
    records = [{"probe": probe, "seconds": 1.0, **record} for probe, record in found.items()]
    write(path / "card.jsonl", [{"card": 1, "identity": who}, *records])
    return path / "card.jsonl"


def wrong(path: Path) -> list[str]:
    return [verdict.text for verdict in verify(path) if verdict.outcome == "does not hold"]


def test_a_file_of_an_earlier_version_is_judged_by_the_claims_of_this_one() -> None:
    verdicts = verify(EARLIER)
    assert {each.outcome for each in verdicts} == {"holds", "not looked at"}
    judged = [each.text.partition(" (by claims of another version")[0] for each in verdicts if each.outcome == "holds"]
    facts = [claim.text for claim in claims.CLAIMS if claim.probe == "arithmetic"]
    scales = "gpt small: 4 scales of 2 runs are the reference machine's; 4 skips, within bound T1"
    assert judged == [scales, "a scale of 2^24 overflows", *facts]


def test_a_good_file_holds_in_all_points(tmp_path: Path) -> None:
    verdicts = verify(written(tmp_path, GOOD))
    assert {verdict.outcome for verdict in verdicts} == {"holds"}
    assert len(verdicts) == 3 + len(claims.CLAIMS)


PLANTED = {
    "kit torch": {"findings": {"scale_comes_back": "passes"}},
    "kit ampsim": {"findings": {"skip_is_reported": "no"}},
    "streams": {"differing": [7]},
    "fused step": {"differing": [{"seed": 0}]},
    "gpt2-small": {"trajectories": [{**RUN, "loss": [1.0, 2.0, 2.0, 2.0, 3.0]}]},
    "gpt small": {"trajectories": [{**RUN, "scale": [16.0, 8.0, 8.0, 16.0, 8.000000953674316]}]},
    "arithmetic": {"facts": {name: [0, value] for name, value in FACTS.items()}},
    "overhead": {"sizes": {"large": {**SIZE, "ratios": {"ours, fused step": 1.39}}}},
}


@pytest.mark.parametrize("probe", PLANTED)
def test_a_planted_fault_is_named(tmp_path: Path, probe: str) -> None:
    found = copy.deepcopy(GOOD)
    found[probe] |= PLANTED[probe]
    said = wrong(written(tmp_path, found))
    assert len(said) == (4 if probe == "arithmetic" else 1)
    about = [claim.text for claim in claims.CLAIMS if claim.probe == probe]
    assert all(text.partition(": ")[0] in about or text.startswith(probe) for text in said)


def test_every_claim_can_fail(tmp_path: Path) -> None:
    bad = copy.deepcopy(GOOD)
    for probe, fault in PLANTED.items():
        bad[probe] |= fault
    bad["gpt small"] = {"trajectories": [{**RUN, "found_inf": [False] * 5, "skipped": [False] * 5}]}
    bad["overhead"] = {"sizes": {"large": {"waits": {"ours, fused step": 1}, "ratios": {"ours, fused step": 1.0}}}}
    said = {text.partition(": ")[0] for text in wrong(written(tmp_path, bad))}
    assert {claim.text for claim in claims.CLAIMS} <= said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"scale": [16.0, 8.0, 8.0, 8.0, 8.0]}, "the scale of step 3 is not the machine's"),
        ({"scale": RUN["scale"][:-1]}, "the scale of step 4 is not the machine's"),
        ({"skipped": [True, False, False, False, False]}, "it skipped other steps than those that overflowed"),
        ({"depth": 1}, "the scale of step 1 is not the machine's"),
    ],
)
def test_a_trajectory_that_is_not_the_machines_is_seen(fault: dict[str, object], said: str) -> None:
    assert mismatch(RUN) == ""
    assert mismatch({**RUN, **fault}) == said


def test_a_run_beyond_its_skip_budget_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampsim.core.laws.HISTORY_LAWS", (skip_budget,))
    assert mismatch(RUN) == "skip_budget: 2 skips"


def skip_budget(history) -> str:
    return f"{sum(history.found_inf)} skips"


def test_what_is_missing_or_went_wrong_is_named(tmp_path: Path) -> None:
    found = {probe: record for probe, record in GOOD.items() if probe != "overhead"}
    found["streams"] = {"error": "RuntimeError: out of memory"}
    said = wrong(written(tmp_path, found))
    assert said == [
        "streams: RuntimeError: out of memory; the same command tries it again",
        "overhead: no record; the command that made the file goes on",
    ]


@pytest.mark.parametrize(
    ("findings", "outcome", "why"),
    [
        ({}, "not looked at", " (1 of 61 laws asked, for want of time)"),
        ({"scale_comes_back": "passes"}, "does not hold", ": scale_comes_back"),
    ],
)
def test_of_laws_that_were_not_all_asked_it_is_only_said_that_one_is_broken(
    findings: dict[str, str], outcome: str, why: str, tmp_path: Path
) -> None:
    found = {**GOOD, "kit torch": {"checks": {"a": "passed"}, "findings": findings, "of": 61}}
    others = [each for each in verify(written(tmp_path, found)) if each.outcome != "holds"]
    assert others == [(outcome, f"{claims.CLAIMS[0].text}{why}")]


def test_claims_that_were_changed_after_the_data_say_so(tmp_path: Path) -> None:
    texts = [verdict.text for verdict in verify(written(tmp_path, GOOD, frozen="0" * 64))]
    assert sum("by claims of another version than the data's" in text for text in texts) == len(claims.CLAIMS)


def test_of_a_cpu_nothing_is_claimed_that_is_claimed_of_a_card(tmp_path: Path) -> None:
    found = {**GOOD, "overhead": {"sizes": {"small": {"ratios": {}}}}}
    assert wrong(written(tmp_path, found, device="cpu")) == []


@pytest.mark.parametrize("record", [{"trajectories": [{}]}, {"trajectories": [{**RUN, "rule": {"init_scale": -1.0}}]}])
def test_sealed_nonsense_is_refused(tmp_path: Path, record: dict[str, object]) -> None:
    with pytest.raises(DamagedFileError, match="expected records as the probes write them"):
        verify(written(tmp_path, {"gpt small": record}))


# ------------------------------------------------------------------------------------------- probes, dry, and broken


def test_drawn_histories_on_a_cpus_threads_leave_the_machines_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ITERATIONS", 12)
    monkeypatch.setattr(probes, "ELEMENTS", (64,))
    runs = [probes.step("in order", "cpu", seed) for seed in range(12)]
    assert [probes.step("behind", "cpu", seed) for seed in range(4)] == runs[:4]
    assert [mismatch(run) for run, _ in runs] == [""] * 12
    assert len({run["depth"] for run, _ in runs}) == 4


def test_a_history_that_changes_a_bit_or_a_scale_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    step, planted = probes.step, []

    def stepped(way, device, seed):
        run, bits = step(way, "cpu", seed)
        if way == "behind" and "scale" in planted:
            run["scale"][-1] *= 2
        return run, bits[:-1] + b"!" if way == "behind" and "bit" in planted else bits

    monkeypatch.setattr(probes, "ELEMENTS", (64,))
    monkeypatch.setattr(probes, "step", stepped)
    found = next(probes.compare("behind", "in order", "cuda"))
    assert (len(found["trajectories"]), found["differing"]) == (1, [])
    assert mismatch(found["trajectories"][0]) == ""
    for planted[:] in (["bit"], ["scale"]):
        assert next(probes.compare("behind", "in order", "cuda"))["differing"] == [0]


def test_on_a_cpu_a_thread_steps_behind_and_nothing_is_claimed_of_streams_and_kernels() -> None:
    assert next(probes.compare("behind", "in order", "cpu"))["differing"] == []
    assert [claim.cuda for claim in claims.CLAIMS if claim.probe == "streams"] == [True]
    with pytest.raises(RuntimeWarning, match="expected CUDA, with Triton"):
        next(probes.compare("fused", "torch", "cpu"))


@pytest.mark.filterwarnings("ignore:fused_step=True:RuntimeWarning")
def test_twins_agree_and_one_whose_step_is_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(seed: int) -> tuple[str, bytes]:
        run, bits = probes.step("fused", "cpu", seed)
        return mismatch(run), bits

    monkeypatch.setattr(probes, "ELEMENTS", (64,))
    theirs = [("", probes.step("torch", "cpu", seed)[1]) for seed in range(6)]
    assert [fused(seed) for seed in range(6)] == theirs
    late = partial(probes.GradScaler, backoff_factor=0.3)  # its scale is no power of two
    monkeypatch.setitem(probes.SCALERS, "ampsim", late)
    assert all(said and (said, bits) != twin for (said, bits), twin in zip(map(fused, range(6)), theirs, strict=True))


def test_a_gpt_trains_in_fp16_and_its_scales_are_the_machines() -> None:
    found = [*itertools.islice(probes.train_both("small", "cpu"), 13)][-1]
    assert [(run["name"], len(run["scale"]), mismatch(run)) for run in found["trajectories"]] == [
        ("torch", 13, ""), ("ampsim", 13, "")
    ]  # fmt: skip
    run = found["trajectories"][0]
    assert run["found_inf"][0]
    run["found_inf"][-1] = not run["found_inf"][-1]
    assert mismatch(run) != ""


def test_facts_of_this_processors_arithmetic() -> None:
    found = next(probes.compare_arithmetic("cpu"))
    assert {here == cpu for here, cpu in found["facts"].values()} == {True}
    claimed = [claim for claim in claims.CLAIMS if claim.probe == "arithmetic"]
    assert [claim.holds(found) for claim in claimed] == [True] * 4


def test_ways_to_step_are_timed_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SIZES", {"small": [10] * 3, "large": [1_000_001]})
    monkeypatch.setattr(probes, "SECONDS", 0.01)
    *_, found = probes.time_steps("cpu")
    assert {*found["sizes"]} == {"small"}
    small = found["sizes"]["small"]
    assert {*small["device_us"]} == {*small["host_us"]} == {"bare", "torch", "ours"}
    taken = small["device_us"]
    assert small["ratios"] == {way: taken["torch"] / taken[way] for way in ("bare", "torch", "ours")}
