"""What is noted of an optimizer's step, by itself: forgotten whole, reported once, taken for one state alone."""

import dataclasses
import weakref

import pytest
import torch

from ampsim import State
from ampsim.torch import GradScaler, checkpoint
from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.step.optimizer_step import _flag
from ampsim.torch.step.records import Record, Stage, StepRecords, StepReport
from ampsim.torch.threads.iterations import Iterations
from ampsim.torch.threads.register import Ticket
from tests.torch.helpers import an_optimizer

ONE, CPU = torch.ones(()), torch.device("cpu")


def test_a_record_that_is_forgotten_is_as_new():
    record = Record(None, Stage.UNSCALED, folded=ONE, observed=object(), successor=object())
    record.found_inf = {CPU: ONE}
    record.forget()
    assert all(getattr(record, each.name) == getattr(Record(None), each.name) for each in dataclasses.fields(Record))


def test_flags_that_failed_to_come_are_missed_at_the_next_look_too():
    record, answers = Record(None), [RuntimeError("late"), RuntimeError("lost"), FoundInf({CPU: ONE})]

    def look():
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    record.expect(look)
    for text in ("late", "lost"):
        with pytest.raises(RuntimeError, match=text):
            _ = record.found_inf
    assert record.found_inf == record.found_inf == {CPU: ONE}
    assert answers == []


def test_a_ticket_that_is_closed_is_forgotten_with_those_before():
    records = StepRecords()
    for ticket in range(3):
        records.holding(ticket, object(), list, bool)
    records.close(1)
    assert [len(records.of(ticket)) for ticket in range(3)] == [0, 0, 1]


def test_a_ticket_that_is_not_outstanding_is_told_by_its_number():
    with pytest.raises(RuntimeError, match=r"^scale with ticket 3: expected one that this scaler's begin\(\) returned"):
        Iterations(2, None).checked("scale", Ticket(3, 1, None))


def test_a_report_that_an_interrupt_kept_from_the_scaler_leaves_nothing_in_the_next():
    first, lost, second = (Record(optimizer=object()) for _ in range(3))
    report = StepReport().adding(0, first)
    report.adding(0, lost)
    assert list(report.adding(0, second)) == [first.optimizer, second.optimizer]


def test_a_forked_child_has_no_lock_of_the_records_that_its_parent_held(monkeypatch):
    scalers = [GradScaler("cpu") for _ in range(3)]
    monkeypatch.setattr(checkpoint, "alive", weakref.WeakSet(scalers))
    for scaler in scalers:
        scaler._records.lock.acquire()
    checkpoint._fork_all()
    assert not any(scaler._records.lock.locked() for scaler in scalers)


def test_of_updates_that_failed_the_oldest_is_the_next_to_be_asked_for():
    sent = []
    iterations = Iterations(1, sent.append)
    register = iterations.start(lambda: (State(1.0),))
    tickets = [register.begin(), register.begin()]

    def fail():
        raise ValueError("planted")

    asked = [iterations.ask(ticket, fail, is_async=False) for ticket in tickets]
    for work in sent[1:]:  # the first notes which thread it runs on
        work()
    assert iterations.stepping("step", None) is tickets[0]
    for job in asked:
        with pytest.raises(ValueError, match="planted"):
            job.result()


class Observer:
    """One of many that are equal, and notes whether the scaler may be called from where it is told."""

    def __init__(self, scaler):
        self.scaler, self.told = scaler, []

    def __eq__(self, other):
        return True

    __hash__ = None

    def gradients(self, ticket, optimizer, scale):
        self.told += [scale.item(), optimizer.param_groups[0]["params"][0].grad.tolist()]

    def closing(self, ticket):
        self.told.append("closing")

    def closed(self, ticket, found_inf):
        self.told.append("closed under a lock" if self.scaler._records.lock.locked() else "closed")


def test_observers_are_told_apart_and_under_no_lock():
    (param, optimizer), scaler = an_optimizer(), GradScaler("cpu", init_scale=4.0)
    stopped, observer, other = Observer(scaler), Observer(scaler), Observer(scaler)
    stop = scaler.observe(stopped)
    scaler.observe(observer)
    scaler.observe(other)
    stop()
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (stopped.told, observer.told, other.told) == ([], *[[4.0, [4.0, 4.0], "closing", "closed"]] * 2)


def test_the_loss_is_by_the_scale_of_the_ticket_that_is_given():
    scaler = GradScaler("cpu", init_scale=4.0, depth=1)
    tickets = [scaler.begin(), scaler.begin()]
    for ticket, new_scale in zip(tickets, (2.0, 8.0), strict=True):
        scaler.update(new_scale, ticket=ticket)
    last = scaler.begin()
    scaled = [scaler.scale(ONE, ticket=last).item(), scaler.loss_value(ONE, ticket=tickets[0]).item()]
    assert (*scaled, scaler.loss_value(ONE).item()) == (2.0, 0.25, 0.5)


def test_gradients_of_another_ticket_are_found_behind_one_that_has_none():
    scaler, (a, b) = GradScaler("cpu", depth=1), [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([a, b])
    first, second = scaler.begin(), scaler.begin()
    scaler.scale(b.sum(), ticket=first).backward()
    with pytest.raises(RuntimeError, match="gradients of ticket 0 would be unscaled by ticket 1: expected the ticket"):
        scaler.step(optimizer, ticket=second)


def test_a_backward_pass_within_another_takes_no_gradients_from_it():
    scaler, (a, b) = GradScaler("cpu", depth=1), [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    first, second = scaler.begin(), scaler.begin()
    scaler.scale(a.sum() + b.sum(), ticket=first)  # whose parameters are watched
    inner = a * 2
    inner.register_hook(torch.enable_grad()(lambda _: scaler.scale(b.sum(), ticket=second).backward()))
    scaler.scale(inner.sum(), ticket=first).backward()
    with pytest.raises(RuntimeError, match="gradients of ticket 0 would be unscaled by ticket 1"):
        scaler.step(torch.optim.SGD([a]), ticket=second)
    scaler.step(torch.optim.SGD([b]), ticket=second)


def test_gradients_that_were_left_are_found_among_those_that_were_zeroed():
    scaler = GradScaler("cpu", growth_interval=1)
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(32)]
    optimizer, other = torch.optim.SGD(params[:1]), torch.optim.SGD(params[1:])
    scaler.scale(sum(param.sum() for param in params)).backward()
    for param in params[2:]:
        param.grad = None
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match=r"gradients from before an update\(\) would be divided by the scale"):
        scaler.step(other)


@pytest.mark.parametrize("recording", [True, False])
def test_whether_gradients_are_recorded_is_as_before(recording):
    (param, optimizer), scaler = an_optimizer(), GradScaler("cpu")
    scaler.scale(param.sum()).backward()
    with torch.set_grad_enabled(recording):
        scaler.unscale_(optimizer)
        assert torch.is_grad_enabled() == recording


def test_outputs_come_back_in_a_list_or_tuple_as_they_were_given():
    scaled = GradScaler("cpu", init_scale=4.0).scale((ONE, [ONE, (ONE,)]))
    assert scaled == (4.0, [4.0, (4.0,)])


def test_a_constant_that_no_run_could_want_is_refused_where_it_is_set(thread):
    scaler = GradScaler("cpu", launch=thread.launch)
    with pytest.raises(ValueError, match="growth_interval=0: expected at least 1"):
        scaler.set_growth_interval(0)
    thread.synchronize()
    assert scaler.get_growth_interval(up_to_date=True) == 2000


def test_an_optimizer_of_others_is_told_of_no_overflow_where_torchs_own_need_no_word():
    class Theirs(torch.optim.SGD):
        pass

    record = Record(None)
    record.found_inf.on(CPU)  # is made by the look
    assert _flag(an_optimizer(fused=True)[1], record) is None
    assert _flag(an_optimizer(kind=Theirs)[1], record) == 0.0


class Raises(torch.optim.SGD):
    """An optimizer whose step fails."""

    def step(self, closure=None):
        raise OSError("planted")


def test_a_step_that_raised_has_not_used_up_its_gradients():
    param, optimizer = an_optimizer(kind=Raises)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scaler.scale(param.sum()).backward()
    with pytest.raises(OSError, match="planted"):
        scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match=r"would be divided by the scale 8\.0: expected 1\.0"):
        scaler.step(optimizer)


def test_a_disabled_scaler_clips_to_the_norm_of_all_groups():
    params = [torch.nn.Parameter(torch.zeros(())) for _ in range(2)]
    params[0].grad, params[1].grad = torch.tensor(3.0), torch.tensor(4.0)
    optimizer = torch.optim.SGD([{"params": [param]} for param in params])
    assert GradScaler("cpu", enabled=False).unscale_and_clip_(optimizer, 1.0) == 5.0


def test_of_two_tickets_the_newest_is_forgotten():
    records, optimizer = StepRecords(), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    for ticket, stage in enumerate((Stage.STEPPED, Stage.UNSCALED)):
        records.holding(ticket, optimizer, bool, lambda record, stage=stage: record.move(stage))
    records.drop(id(optimizer))
    assert records.by_id()[id(optimizer)].stage is Stage.STEPPED
    records.drop(id(optimizer))
    assert records.by_id() == {}
