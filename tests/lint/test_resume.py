"""A scaler that is saved has to be loaded where the optimizer is."""

import pytest

from ampsim.lint.engine import lint

TRAINER = """\
class Trainer:
    def __init__(self, network):
        self.optimizer = torch.optim.SGD(network.parameters(), 0.01)
        self.grad_scaler = torch.amp.GradScaler()
    def train_step(self, batch):
        self.grad_scaler.scale(self.network(batch)).backward()
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
    def save(self, path):
        states = {"optimizer": self.optimizer.state_dict(), "s": self.grad_scaler.state_dict()}
        torch.save(states, path)
    def load(self, path):
        states = torch.load(path)
        self.optimizer.load_state_dict(states["optimizer"])
"""


def test_saved_scaler_must_be_loaded() -> None:
    assert [(each.line, each.code) for each in lint(TRAINER)] == [(14, "AMP137")]


@pytest.mark.parametrize(
    "line",
    [
        "self.grad_scaler.load_state_dict(states['s'])",
        "load_all(states, scaler=self.grad_scaler)",
        "for part in self.parts: part.load_state_dict(states)",
        "getattr(self, name).load_state_dict(states[name])",
    ],
)
def test_what_may_load_the_scaler(line: str) -> None:
    assert lint(f"{TRAINER}        {line}\n") == []


def test_scaler_that_is_not_saved() -> None:
    """It has nothing to load: the finding is that it is not saved."""
    unsaved = TRAINER.replace(', "s": self.grad_scaler.state_dict()', "")
    assert [each.code for each in lint(unsaved)] == ["AMP112"]


def test_file_that_loads_nothing() -> None:
    assert lint(TRAINER.partition("    def load")[0]) == []


@pytest.mark.parametrize(
    ("step", "save", "found"),
    [
        ("scaler.step(optimizer)", "checkpointer.save(model, optimizer)", True),
        ("scaler.step(optimizer)", "checkpointer.save(model, optimizer, grad_scaler)", False),
        ("scaler.step(optimizer)", "figure.save(model, optimizer)", False),
        ("accel.step(optimizer)", "torch.save(optimizer.state_dict(), path)", True),
    ],
)
def test_what_saves_the_optimizer(step: str, save: str, found: bool) -> None:
    """A scaler that unscales gradients is in use, whoever steps with it."""
    text = f"for batch in loader:\n    scaler.unscale_(optimizer)\n    {step}\n{save}\n"
    assert [each.code for each in lint(text)] == ["AMP112"] * found
