"""The transitions of `AsyncState`, without tensors and threads, against `ampsim.core.pipeline`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampsim.core import machine, pipeline
from ampsim.core.machine import Rule
from ampsim.core.pipeline import WouldBlockError
from ampsim.torch.async_state import (
    AsyncState,
    Call,
    ClosedError,
    ForkedError,
    Stage,
    WithdrawnError,
)

RULE = Rule(1.0, growth_interval=1)


def started(depth):
    """Return a state whose versions are numbered: version j has the scale 2^j."""
    return AsyncState(RULE, depth, (RULE.init(),))


def updated(state, **options):
    """Update the oldest iteration, which doubles the scale."""
    (token,) = state.requests[:1] or (None,)
    doubled = 2 * state.newest.scale
    return state.update(state.iterations[0].ticket, token, doubled, **options)


def number(version):
    """Return the number of a version."""
    return int(math.log2(version.scale))


def tickets(state):
    return [iteration.ticket for iteration in state.iterations]


UPDATES = st.tuples(
    st.sampled_from([False, True, 3.0]), st.booleans()
)  # outcome, synchronous


@given(
    depth=st.integers(0, 3),
    interval=st.integers(1, 3),
    events=st.lists(st.one_of(st.just("begin"), UPDATES), max_size=40),
)
def test_events_match_pure_pipeline(depth, interval, events):
    rule = Rule(1024.0, growth_interval=interval)
    model = pipeline.start(rule, depth)
    state = AsyncState(rule, depth, (machine.init(rule),))
    begun = []
    for key, event in enumerate(events):
        if event == "begin" and model.next_version > model.applied:
            with pytest.raises(WouldBlockError):
                pipeline.begin_iteration(model)
            with pytest.raises(WouldBlockError):
                state.begin(key)
        elif event == "begin":
            model, state = pipeline.begin_iteration(model), state.begin(key)
            begun.append(tickets(state)[-1])
        elif model.applied < len(model.carried):
            outcome, synchronous = event
            new_scale = outcome if isinstance(outcome, float) else None
            model = pipeline.finish(
                model,
                model.applied,
                outcome,
                new_scale=new_scale,
                synchronous=synchronous,
            )
            ticket = tickets(state)[0]
            state = state.hold(call := Call(ticket, "optimizer"))
            state = state.complete(call, Stage.STEPPED, (outcome,))
            call.is_over = True
            state = state.update(ticket, None, new_scale, synchronous=synchronous)
    assert (state.applied, state.begun) == (model.applied, len(model.carried))
    assert state.versions == model.versions[-len(state.versions) :]
    assert [ticket.version for ticket in begun] == list(model.carried)
    scales = [model.scale(index) for index in range(len(begun))]
    assert [ticket.value.scale for ticket in begun] == scales


class Actor:
    """Draws events, valid and invalid, and remembers the tickets, calls, and tokens to draw
    from.
    """

    def __init__(self, data, depth):
        self.data, self.state = data, started(depth)
        self.tickets, self.calls, self.tokens = [], [], [object()]
        self.keys = 0
        self.state = self.begin()
        self.state = self.hold()

    def draw(self, values):
        return self.data.draw(st.sampled_from(values))

    def begin(self):
        self.keys += 1
        state = self.state.begin(self.keys)
        self.tickets.append(tickets(state)[-1])
        return state

    def hold(self):
        call = Call(self.draw(self.tickets), self.draw("ab"))
        state = self.state.hold(call)
        self.calls.append(call)
        return state

    def complete(self):
        call = self.draw(self.calls)
        state = self.state.complete(call, self.draw([*Stage]), (True,))
        call.is_over = True
        return state

    def interrupt(self):
        call = self.draw(self.calls)
        call.is_writing, call.is_over = self.draw([True, False]), True
        return self.state

    def forget_broken(self):
        return self.state.forget_broken(self.draw(self.tickets))

    def request(self):
        token = object()
        state = self.state.request(self.draw(self.tickets), token)
        self.tokens.append(token)
        return state

    def cancel_request(self):
        return self.state.cancel_request(self.draw(self.tokens))

    def update(self):
        token = self.draw([None, *self.state.requests[:1]])
        ticket, doubled = self.draw(self.tickets), 2 * self.state.newest.scale
        synchronous = self.draw([True, False])
        return self.state.update(ticket, token, doubled, synchronous=synchronous)

    def withdraw(self):
        return self.state.withdraw(self.draw(self.tickets).key)

    EVENTS = (
        begin, hold, complete, interrupt, forget_broken, request, cancel_request, update, withdraw,
    )  # fmt: skip


@given(data=st.data(), depth=st.integers(0, 3))
def test_transitions_keep_invariants(data, depth):
    actor = Actor(data, depth)
    for event in data.draw(st.lists(st.sampled_from(Actor.EVENTS), max_size=40)):
        before, contents = actor.state, dict(vars(actor.state))
        try:
            actor.state = event(actor)
        except (
            RuntimeError,
            StopIteration,
        ):  # StopIteration: a call that has ended completes
            assert actor.state is before
        assert vars(before) == contents  # nothing is written in place
        check_invariants(before, actor.state)


def check_invariants(before, state):
    indices = [ticket.index for ticket in tickets(state)]
    assert indices == list(range(state.applied, state.begun))
    assert len(indices) <= state.depth + 1
    assert len(state.requests) <= len(indices)
    assert state.applied in (before.applied, before.applied + 1)
    newest = range(state.applied - len(state.versions) + 1, state.applied + 1)
    assert [*map(number, state.versions)] == [*newest]
    carried = [ticket.version for ticket in tickets(state)]
    assert carried == sorted(carried)
    for ticket in tickets(state):
        assert number(ticket.value) == ticket.version >= ticket.index - state.depth
    # A checkpoint holds what the oldest iteration in flight uses, and all that came after.
    saved = [*map(number, state.saved_versions())]
    assert saved[-1] == state.applied
    assert saved[0] == (carried[0] if carried else state.next_version)


def test_saved_versions_repeat_lost_iterations():
    state = started(2)
    for key in range(3):
        state = state.begin(key)
    for _ in range(2):
        state = updated(state)
        state = state.begin(9)
    lost = [ticket.value for ticket in tickets(state)]
    resumed = started(2).load(RULE, state.saved_versions())
    for key in range(3):
        resumed = resumed.begin(key)
    assert [ticket.value for ticket in tickets(resumed)] == lost


def test_withdrawn_ticket_begins_again_equally():
    state = started(1).begin(1).begin(2)
    state = updated(state).withdraw(2).begin(3)
    assert [number(ticket.value) for ticket in tickets(state)] == [0]


def test_one_call_holds_an_optimizer():
    state = started(0).begin(1)
    (ticket,) = tickets(state)
    call = Call(ticket, "a")
    state = state.hold(call).hold(Call(ticket, "b"))
    with pytest.raises(RuntimeError, match="another call works on this"):
        state.hold(Call(ticket, "a"))
    with pytest.raises(RuntimeError, match="while a call works on its gradients"):
        state.update(ticket)
    call.is_over = True
    state.hold(Call(ticket, "a"))


def test_interrupted_call_needs_new_gradients():
    state = started(0).begin(1)
    (ticket,) = tickets(state)
    call = Call(ticket, "a")
    state = state.hold(call)
    call.is_writing = call.is_over = True
    with pytest.raises(RuntimeError, match="expected new gradients"):
        state.hold(Call(ticket, "a"))
    state.forget_broken(ticket).hold(Call(ticket, "a"))


def test_withdrawn_update_is_not_made():
    state = started(1).begin(1).begin(2)
    first, second = tickets(state)
    state = (
        state.request(first, "first").request(second, "second").cancel_request("first")
    )
    assert state.requests == ()
    with pytest.raises(WithdrawnError):
        state.update(first, "first")


def test_first_cause_of_close_stays():
    first, second = OSError("disk"), OSError("other")
    state = started(0).close(first).close(second)
    with pytest.raises(ClosedError, match="disk"):
        state.begin(1)
    assert isinstance(state.close(ForkedError("child")).closed, ForkedError)
