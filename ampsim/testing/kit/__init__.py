"""The kit finds out whether a loss scaler keeps the checks. It leaves the order of threads to
`ampsim.testing.scheduler`.

subject
    The scaler under test: a function that makes a fresh one, a name, and the traits that it declares.
checks
    What must be true, as plain tests: what a check takes its parameters name.
words
    What a check may take: an optimizer, and what is done with it, in torch.
check
    To ask one check of a subject: on examples that are drawn, until the shortest one that breaks it.

Example:
    One example: a fresh scaler, the words of the check, and the story of what was done to it.
expected
    What is known beforehand: the scales of the reference machine, and torch's words.
judge
    To ask checks of a subject; each gives a result, and a result that someone should look at is a finding.
"""
