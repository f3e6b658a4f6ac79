"""The kit finds out whether a loss scaler keeps the laws. It leaves the order of threads to `ampsim.testing.conductor`.

subject
    The scaler under test: a function that makes a fresh one, a name, and the traits that it declares.
check
    One law, as a function that drives a scaler and fails where the law does not hold; all are in ``checks/``.
trial
    One example of a check: one fresh scaler, its optimizers, and the story of what was done to them.
judge
    To run checks on a subject; each gives a result, and a result that someone should look at is a finding.
"""
