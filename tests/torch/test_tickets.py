"""Any order of ticket calls against the pure model, `ampsim.core.pipeline`."""

import threading

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule
from ampsim.torch import GradScaler
from tests.torch.helpers import INF, an_optimizer

RULE = Rule(init_scale=1024.0, growth_interval=2)
calls = st.one_of(
    st.tuples(st.just("begin")),
    st.tuples(st.just("finish"), st.sampled_from([0, -1, 1, 2]), st.booleans(), st.booleans()),
    st.tuples(st.just("iterate"), st.booleans(), st.sampled_from([True, True, False])),
    st.tuples(st.just("save"), st.integers(0, 3)),
)


class Pair:
    """A scaler and the model of it, after the same calls."""

    def __init__(self, depth):
        self.scaler = self.make(depth)
        self.model = pipeline.start(RULE, depth)
        self.tickets = {}

    def make(self, depth):
        interval = RULE.growth_interval
        return GradScaler("cpu", RULE.init_scale, growth_interval=interval, depth=depth)

    def begin(self):
        if self.model.next_version > self.model.applied:
            with pytest.raises(TimeoutError):
                self.scaler.begin_iteration(timeout=0)
            return
        self.model = pipeline.begin_iteration(self.model)
        ticket = self.scaler.begin_iteration(timeout=0)
        assert ticket.index == len(self.model.carried) - 1
        self.tickets[ticket.index] = ticket

    def finish(self, offset, overflows, is_async):
        index = self.model.applied + offset
        ticket = self.tickets.get(index)
        if ticket is None:
            return
        try:
            after = pipeline.finish(self.model, index, overflows, synchronous=not is_async)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                self.scaler.update(2.0, ticket=ticket)
            return
        param, optimizer = an_optimizer()
        param.grad = torch.tensor([1.0, INF if overflows else 1.0])
        self.scaler.step(optimizer, ticket=ticket)
        self.scaler.update(is_async=is_async, ticket=ticket)
        self.model = after

    def iterate(self, overflows, is_async):
        """Run ahead as far as possible, then update once: this fills the pipeline."""
        while self.model.next_version <= self.model.applied:
            self.begin()
        self.finish(0, overflows, is_async)

    def save(self, depth):
        if len(self.model.carried) > self.model.applied:
            if self.model.depth:  # at depth 0 a dict in the middle of an iteration is torch's
                with pytest.raises(RuntimeError, match="ticket"):
                    self.scaler.state_dict()
            return
        waiting = self.model.versions[self.model.next_version :]
        saved = self.scaler.state_dict()
        assert [saved["scale"], *saved.get("pending", [])] == [state.scale for state in waiting]
        depth = max(depth, len(waiting) - 1)  # a shallower scaler drops some: test_22
        self.scaler = self.make(depth)
        self.scaler.load_state_dict(saved)
        self.model = pipeline.Pipeline(RULE, depth, waiting, tuple(range(len(waiting) - 1)))
        self.tickets = {}

    def compare(self):
        newest = self.model.versions[-1]
        for index in range(self.model.applied, len(self.model.carried)):
            scaled = self.scaler.scale(torch.ones(()), self.tickets[index])
            assert scaled.item() == self.model.scale(index)
        if self.tickets:
            assert self.scaler.get_scale() == newest.scale
            assert self.scaler._get_growth_tracker() == newest.growth_tracker


@settings(max_examples=100)
@given(depth=st.integers(0, 3), plan=st.lists(calls, max_size=30))
@example(depth=1, plan=[("iterate", False, True), ("begin",), ("finish", 1, False, True)])
@example(depth=2, plan=[("iterate", False, False), ("iterate", True, True), ("save", 1)])
def test_generated_calls_match_model(depth, plan):
    pair = Pair(depth)
    for name, *arguments in plan:
        getattr(pair, name)(*arguments)
        pair.compare()


def test_foreign_ticket_raises():
    scaler, other = GradScaler("cpu", depth=1), GradScaler("cpu", depth=1)
    own, foreign = scaler.begin_iteration(), other.begin_iteration()
    with pytest.raises(RuntimeError, match="ticket 0"):
        scaler.update(2.0, ticket=foreign)
    scaler.load_state_dict(GradScaler("cpu", depth=1).state_dict())
    with pytest.raises(RuntimeError, match="ticket 0"):
        scaler.update(2.0, ticket=own)  # begun before the load
    assert scaler.get_scale() == 2.0**16


def test_load_state_dict_unblocks_waiting_thread():
    scaler = GradScaler("cpu")
    scaler.begin_iteration()
    begun = []
    waiting = threading.Thread(target=lambda: begun.append(scaler.begin_iteration()))
    waiting.start()
    scaler.load_state_dict({**GradScaler("cpu").state_dict(), "scale": 8.0})
    waiting.join(60)
    assert scaler.scale(torch.ones(()), begun[0]).item() == 8.0
