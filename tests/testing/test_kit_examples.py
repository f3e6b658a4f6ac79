"""Examples of the kit: drawn once, run once, and shrunk when one fails."""

from collections import Counter

import pytest
from hypothesis import strategies as st

from ampsim.testing import FromFlag, Subject, Traits, examples
from ampsim.testing.kit.example import Example
from ampsim.testing.kit.judge import judge
from ampsim.testing.kit.laws import LAWS

DRAWS = (("flags", st.lists(st.booleans(), min_size=1, max_size=4)),)


def test_each_example_is_run_once_although_it_is_drawn_often():
    seen = Counter()
    examples.run(lambda flags: seen.update([tuple(flags)]), DRAWS, [{"flags": [True] * 9}], 60)
    assert next(iter(seen)) == (True,) * 9
    assert len(seen) > 10
    assert set(seen.values()) == {1}


def test_the_last_example_that_fails_is_the_shortest_and_what_passed_is_not_run_again():
    passed, failed = Counter(), []

    def example(flags):
        if sum(flags) >= 2:
            failed.append(flags)
            raise ValueError(flags)
        passed[tuple(flags)] += 1

    with pytest.raises(ValueError, match="True, True"):
        examples.run(example, DRAWS, (), 60)
    assert failed[-1] == [True, True]
    before = examples.drawn_by(DRAWS, 60).values()
    assert max(passed[tuple(drawn["flags"])] for drawn in before) == 1


def test_what_fails_once_only_is_a_failure_all_the_same():
    failures = [ZeroDivisionError("once")]

    def example(flags):
        if len(flags) == 3 and failures:
            raise failures.pop()

    with pytest.raises(ZeroDivisionError, match="once"):
        examples.run(example, DRAWS, (), 60)


def test_a_scaler_lives_once_for_all_laws_of_a_life():
    made = []

    def make(rule):
        made.append(rule)
        return FromFlag(lambda: rule.init_scale, lambda found_inf: None)

    subject = Subject(make)
    laws = ["clean_step_keeps_the_scale", "overflow_never_raises_the_scale", "overflow_backs_off_once"]
    (passed,) = judge(subject, [LAWS[laws[0]]])
    once = len(made)
    (passed_too,) = judge(subject, [LAWS[laws[1]]])
    assert (passed.outcome, passed_too.outcome, len(made)) == ("passed", "passed", once + 1)  # it is tried out
    (broken,) = judge(subject, [LAWS[laws[2]]])
    assert "history  inf\n" in broken.text
    assert "init_scale=65536.0," in broken.text


def test_a_story_has_a_scale_again_that_comes_again():
    example = Example(Subject(lambda rule: None), LAWS["clean_step_is_taken"])
    used = example._noted(lambda scaler, scale: scale, lambda scale: "")
    for scale in (2.0, 2.0, 1.0, 2.0):
        used(None, scale)
    assert dict(example.story())["scale"] == "2.0 -> 1.0 -> 2.0"


def test_a_story_begins_with_the_rule_of_the_first_scaler():
    example = Example(Subject(lambda rule: None), LAWS["clean_step_is_taken"])
    for scale in (4.0, 8.0):
        example.make(init_scale=scale)
    assert dict(example.story())["scaler"].startswith("init_scale=4.0, ")


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (7, "1.0 -> 2.0 -> 3.0 -> 4.0 -> 5.0 -> 6.0 -> 7.0"),
        (8, "1.0 -> 2.0 -> 3.0 -> ... -> 6.0 -> 7.0 -> 8.0"),
    ],
)
def test_a_story_has_seven_scales_or_its_ends(count, shown):
    example = Example(Subject(lambda rule: None), LAWS["clean_step_is_taken"])
    example.scales = [float(scale) for scale in range(1, count + 1)]
    assert dict(example.story())["scale"] == shown


@pytest.mark.parametrize(("scale", "may"), [(2.0, True), (4.0, True), (8.0, False)])
def test_a_scaler_may_give_up_where_a_backoff_leads_to_its_floor_or_below(scale, may):
    example = Example(Subject(lambda rule: None, Traits(min_scale=2.0)), LAWS["clean_step_is_taken"])
    example.make(init_scale=scale)
    assert example._may_give_up() is may
    example.scales = [64.0] * 9  # however many it has shown: an update lowers the last one twice at most
    assert not example._may_give_up()


def test_a_flag_adapter_divides_by_scales_whose_reciprocal_float32_does_not_hold():
    torch = pytest.importorskip("torch")
    scaler = FromFlag(lambda: 2.0**-130, lambda found_inf: None)
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler.scale(torch.ones(()))
    param.grad = torch.tensor([1.0, 3.0]) * 2.0**-130
    scaler.step(optimizer)
    assert param.tolist() == [-1.0, -3.0]
