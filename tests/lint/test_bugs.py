"""The wrong loops of `experiments.bugs`, read and not run: what the source shows is found, and no
right loop.
"""

import ast
import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from ampsim.lint.engine import RULES, lint

ROOT = Path(__file__).parents[2]
STATIC = {
    "unet_468_clipped_before_unscaling": "AMP103",
    "nerfacc_307_never_unscaled": "AMP111",
    "deepspeed_8588_norm_of_scaled_gradients": "AMP106",
    "apex_1030_trust_ratio_of_scaled_gradients": "AMP106",
    "lightning_18828_schedule_goes_on": "AMP101",
    "raft_104_schedule_between_step_and_update": "AMP101",
    "lerobot_4652_average_goes_on": "AMP102",
    "applio_860_second_optimizer_called_directly": "AMP111",
    "levanter_973_zero_gradients_for_a_skip": "AMP111",
}
# The source says it, but no rule reports it: none was found, or precise, in public files.
WITHOUT_RULE = (
    "pytorch_25081_penalty_of_scaled_gradients",
    "open_instruct_1498_last_gradient_survives",
    "rae_67_cleared_per_micro_batch",
    "relax_44_unscaled_twice",
    "areal_1659_one_branch_not_scaled",
    "tnt_354_scaled_loss_logged",
    "fastai_3049_smoothed_loss_is_scaled",
    "paddle_67895_gradients_not_cleared",
    "marin_7659_last_micro_batch_wins",
    "lightly_968_average_per_micro_batch",
)
HIDDEN = {  # what the source of the loop does not say
    "nemo_rl_3881_injected_at_scale_1": "the gradient of a custom function",
    "deepspeed_8588_divided_by_the_next_scale": "which value of the scale a call returns",
    "deepspeed_8432_momentum_before_the_check": "that a tensor is a momentum",
    "nvflare_4838_control_variate_goes_on": "that a tensor is a control variate",
    "nemo_speech_3293_counter_goes_on": "whether a counter counts steps or batches",
    "accelerate_4242_fused_call_taken_for_a_step": "that a fused optimizer is called and does not step",
    "colossalai_2382_norm_kept_from_the_skipped_step": "what a key of a dictionary is kept for",
    "transformers_40709_divided_twice": "that the loss was to be divided once",
    "iseekyan_56_auxiliary_loss_not_divided": "that an auxiliary loss was to be divided",
    "deepspeed_8415_every_step_skipped": "a NaN in the backward pass",
    "automodel_1408_return_value_discarded": "that a function is called for its value",
    "ml_by_hand_85_no_master_copy": "the size of a step in bfloat16",
    "maxtext_5021_new_values_overwritten_by_old": "what a state dict that is loaded was read from",
}


def source(*names: str) -> str:
    """The files as one; `t` is a Trainer, which the loops do not say."""
    text = "\n".join((ROOT / name).read_text() for name in names)
    return re.sub(r"(def \w+\()t(, batch|\):)", r"\1t: Trainer\2", text)


TREE = ast.parse(source("experiments/bugs/trainer.py", "experiments/bugs/loops.py"))
STEPS = {
    node.name: node
    for node in TREE.body
    if isinstance(node, ast.FunctionDef)
    and any(
        isinstance(each, ast.Call) and getattr(each.func, "id", "") == "bug"
        for each in node.decorator_list
    )
}


def found_in(step: str) -> set[str]:
    """The codes of what is found in the file with this step as the only one."""
    others = {each for name, each in STEPS.items() if name != step}
    alone = ast.Module([node for node in TREE.body if node not in others], [])
    return {each.code for each in lint(ast.unparse(alone), codes=RULES)}


@pytest.mark.parametrize(("name", "code"), STATIC.items(), ids=STATIC)
def test_visible_bug_is_found_by_rule(name: str, code: str) -> None:
    assert found_in(name) == {code}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_bug_gives_no_finding(name: str) -> None:
    assert found_in(name) == set()


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_bug_without_rule(name: str) -> None:
    assert found_in(name) == set()


def test_every_corpus_step_is_classified() -> None:
    assert {*STEPS} == {*STATIC, *HIDDEN, *WITHOUT_RULE}
    assert found_in("") == set()


def test_rule_checks_match_corpus_checks() -> None:
    pytest.importorskip(
        "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
    )
    import experiments.bugs.loops as corpus

    checks = {name: corpus.BUGS[name].check for name in STATIC}
    apart = {name for name, code in STATIC.items() if RULES[code].check != checks[name]}
    # A step that bypasses the scaler fails both checks; the corpus names the reported one.
    assert apart == {"nerfacc_307_never_unscaled"}


@pytest.mark.parametrize(
    "files", [["experiments/bugs/trainer.py", "tests/testing/loops.py"]]
)
def test_correct_loops_have_no_findings(files: list[str]) -> None:
    assert (
        lint(source(*files), codes={code for code, rule in RULES.items() if rule.check})
        == []
    )


WRONG_ON_PURPOSE = ("bugs", "reports")
LIGHTNING = ROOT / "experiments/frameworks/lightning.py"


def test_own_loops_have_no_findings() -> None:
    for path in (ROOT / "experiments").rglob("*.py"):
        if path != LIGHTNING and not {*WRONG_ON_PURPOSE} & {*path.parts}:
            assert lint(path.read_text(), str(path)) == []


def test_lightning_clip_of_scaled_gradients() -> None:
    """Lightning unscales in the optimizer's step, behind the clip of its page on manual
    optimization.
    """
    assert [each.code for each in lint(LIGHTNING.read_text())] == ["AMP103"]


with lzma.open(
    ROOT / "tests" / "testing" / "outsiders.jsonl.xz", "rt", encoding="utf-8"
) as lines:
    OUTSIDERS = [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "loop", [each for each in OUTSIDERS if each["right"]], ids=lambda loop: loop["file"]
)
def test_correct_third_party_programs_pass(loop: dict[str, Any]) -> None:
    assert lint(loop["source"]) == []


@pytest.mark.parametrize(
    ("file", "code"),
    [("third/loops/j_scale_dropped.py", "AMP128")],
)
def test_wrong_third_party_loop_is_flagged(file: str, code: str) -> None:
    [loop] = [each for each in OUTSIDERS if each["file"] == file]
    assert [each.code for each in lint(loop["source"], codes=RULES)] == [code]
