"""The register against its pure model: any order of calls, from one thread and from several."""

import ast
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampsim.core import pipeline
from ampsim.core.machine import Rule, State
from ampsim.core.machine import update as advance
from ampsim.torch.threads import register
from ampsim.torch.threads.register import ClosedError, Register
from tests.torch.helpers import told

RULE = Rule(init_scale=1024.0, growth_interval=2)
calls = st.one_of(
    st.tuples(st.just("begin")),
    st.tuples(st.just("current"), st.integers(0, 6)),
    st.tuples(st.just("apply"), st.sampled_from([0, 0, 0, -1, 1, 2]), st.booleans(), st.booleans()),
    st.tuples(st.just("iterate"), st.booleans(), st.sampled_from([True, True, False])),
    st.tuples(st.just("restore"), st.integers(0, 3)),
)


class Pair:
    """A register and the model of it, after the same calls."""

    def __init__(self, depth):
        self.register, self.model = Register(State(RULE.init_scale), depth), pipeline.start(RULE, depth)
        self.tickets = {}

    def begin(self):
        if self.model.next_version > self.model.applied:
            with pytest.raises(TimeoutError):
                self.register.begin(timeout=0)
            return
        self.model = pipeline.begin(self.model)
        ticket = self.register.begin(timeout=0)
        self.tickets[ticket.index] = ticket

    def current(self, first):
        known = self.register.known(first)
        outstanding = [i for i in range(self.model.applied, len(self.model.carried)) if i >= first]
        assert (known and known.index) == (outstanding[0] if outstanding else None)
        if known is None and self.model.next_version > self.model.applied:
            return  # would wait
        if known is None:
            self.model = pipeline.begin(self.model)
        ticket = self.register.current(first)
        self.tickets[ticket.index] = ticket

    def apply(self, offset, found_inf, is_async):
        index = self.model.applied + offset
        ticket = self.tickets.get(index)
        if ticket is None:
            return
        expected = told(lambda: pipeline.finish(self.model, index, found_inf, synchronous=not is_async))
        got = told(lambda: self.register.apply(ticket, lambda s: advance(RULE, s, found_inf), is_async=is_async))
        if isinstance(expected, tuple):
            assert got == expected
        else:
            self.model = expected
            assert got == expected.versions[-1]

    def iterate(self, found_inf, is_async):
        """As far as it may run ahead, then one update: so that deep pipelines and full queues are common."""
        while self.model.next_version <= self.model.applied:
            self.begin()
        self.apply(0, found_inf, is_async)

    def restore(self, depth):
        if self.register.outstanding():
            with pytest.raises(
                RuntimeError, match=r"saved before the update\(\) of ticket number \d+(, \d+)*: expected none to come"
            ):
                self.register.pending()
            return
        waiting = self.model.versions[self.model.next_version :]
        assert self.register.pending() == waiting
        depth = max(depth, len(waiting) - 1)  # who loads into a shallower scaler hands over fewer
        self.register = Register(State(1.0), depth)
        self.register.restore(waiting)
        self.model = pipeline.Pipeline(RULE, depth, waiting, tuple(range(len(waiting) - 1)))
        self.tickets = {}

    def compare(self):
        assert (self.register.applied, self.register.begun) == (self.model.applied, len(self.model.carried))
        assert self.register.newest == self.model.versions[-1]
        assert [t.index for t in self.register.outstanding()] == [*range(self.model.applied, len(self.model.carried))]
        for ticket in self.tickets.values():
            assert ticket.version == self.model.carried[ticket.index]
            assert ticket.value == self.model.versions[ticket.version]
        assert self.register.coming() == self.model.versions[min(self.model.next_version, self.model.applied)]
        if self.model.next_version <= self.model.applied:
            assert self.register.peek() == self.model.versions[self.model.next_version]


@given(depth=st.integers(0, 3), plan=st.lists(calls, max_size=40))
def test_any_calls_agree_with_the_model(depth, plan):
    pair = Pair(depth)
    for name, *arguments in plan:
        getattr(pair, name)(*arguments)
        pair.compare()


@given(depth=st.integers(0, 3), modes=st.lists(st.booleans(), max_size=30))
def test_no_more_versions_are_kept_than_somebody_may_ask_for(depth, modes):
    register = Register(0, depth)
    for is_async in modes:
        register.apply(register.current(), lambda v: v + 1, is_async=is_async)
        assert len(register._book.versions) <= depth + 1


def test_an_advance_that_raises_changes_nothing():
    register = Register(1, 1)
    ticket = register.begin()
    before = register._book
    with pytest.raises(ZeroDivisionError):
        register.apply(ticket, lambda v: v // 0)
    assert register._book is before
    assert register.apply(ticket, lambda v: v + 1) == 2


def test_of_two_threads_with_one_ticket_the_slower_is_refused():
    register = Register(0, 0)
    ticket = register.begin()

    def slow(version):
        register.apply(ticket, lambda v: v + 1)  # the faster one, in between
        return version + 100

    with pytest.raises(RuntimeError, match="ticket 0 was updated already"):
        register.apply(ticket, slow)
    assert register.newest == 1


def test_tickets_from_elsewhere_are_refused():
    register, other = Register(0, 1), Register(0, 1)
    register.begin()
    with pytest.raises(RuntimeError, match="another scaler's, or from before load_state_dict"):
        register.apply(other.begin(), lambda v: v)
    register.restore((0,))
    with pytest.raises(RuntimeError, match="has not begun"):
        register.apply(other.outstanding()[0], lambda v: v)


def test_closing_tells_why_and_keeps_the_first_cause():
    register = Register(5, 1)
    register.begin()  # which `current` would return
    register.close(ValueError("first"))
    register.close(ValueError("second"))
    register.close()
    for call in (register.begin, register.current, lambda: register.restore((0,)), register.check_failed):
        with pytest.raises(ClosedError, match="background work failed: first") as caught:
            call()
        assert type(caught.value.__cause__) is ValueError
    assert (register.newest, register.peek()) == (5, 5)  # what is known can still be read


def test_a_restore_wakes_who_waits():
    register = Register(0, 0)
    register.begin()
    begun = []
    waiting = threading.Thread(target=lambda: begun.append(register.begin()))
    waiting.start()
    register.restore((7,))
    waiting.join(60)
    assert begun[0].value == 7


def test_the_register_imports_no_torch():
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name)
        for node in ast.walk(ast.parse(Path(register.__file__).read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    standard = {"collections.abc", "contextlib", "dataclasses", "threading", "time", "typing"}
    assert names == {*standard, "ampsim.core.pipeline"}
