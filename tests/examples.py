"""How many examples a property test draws, by what one of them costs."""

from hypothesis import settings

LEAST = 20


def examples(ms: float, *, least: int = LEAST) -> int:
    """Return the ``max_examples`` of a test whose example takes `ms` milliseconds on one core.

    Up to 1 ms the profile's own number (`ci`: 100, which is 0.1 seconds), beyond it as many as take
    the same time, but at least `least`, unless the profile draws fewer anyway. Measure with
    ``--hypothesis-show-statistics``::

        @settings(max_examples=examples(ms=10))
        @given(...)
        def test_what_takes_10_ms(...): ...

    Fewer examples find fewer bugs: plant one and see the cheaper test fail before trusting it.
    """
    everything = settings.default.max_examples
    return min(everything, max(least, round(everything / max(1.0, ms))))
