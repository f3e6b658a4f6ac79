"""A broken law as a pytest file in the peer's own words: nothing of ampsim is in it, and it is run where the peer is.

What drives the peer is taken from its file in `ampsim.peers.frameworks`, without what only describes it, so the test
does what the law did.
"""

import os
from collections.abc import Sequence

from ampsim.core.machine import Rule
from ampsim.peers import environments
from ampsim.peers.laws.judging import Verdict
from ampsim.peers.laws.source import driver_of
from ampsim.peers.laws.subject import FACTORS, WORDS, PeerTraits, fields
from ampsim.peers.peer import Peer
from ampsim.testing.emit.run_emitted import run_apart
from ampsim.testing.emit.scaler import printed
from ampsim.testing.emit.text import WIDTH, number, value
from ampsim.testing.kit.laws import LAWS as KIT
from ampsim.testing.kit.subject import CONSTANTS

LIMIT = 600.0  # s per test, most of which its framework takes to load


def emitted(peer: type[Peer], verdict: Verdict, version: str) -> str:
    """Return the pytest file of a broken law.

    Args:
        peer: its class, not a `Remote`.
        verdict: of the law, with the example that broke it.
        version: of the peer that was judged.
    """
    law, example = KIT[verdict.result.law.name], verdict.example
    if example is None or verdict.subject is None:
        raise ValueError(f"{law.name} {verdict.result.outcome} on {peer.name}: there is nothing to emit")

    def write(front: Sequence[str], imports: Sequence[str]) -> str:
        return printed(
            law, example, verdict.seen, WORDS, imports, lambda name: _maker(name, peer, verdict), front=front,
            version=f"{peer.requirement.partition('==')[0]} {version}", gives_up="(Exception,)",
        )  # fmt: skip

    return write(*driver_of(peer, write((), ())))


def _maker(name: str, peer: type[Peer], verdict: Verdict) -> str:
    """Write the function of torch's constants that starts the peer, as `subject_of` does: within its bounds."""
    traits = verdict.subject.traits if verdict.subject else PeerTraits()
    known, makes = fields(peer), name == "make"  # type: ignore[arg-type]  # a class has what is asked of it
    top, low = traits.possible(Rule(init_scale=2.0**127)).init_scale, traits.min_scale or 0.0
    texts = {each: f'rule["{each}"]' for each in CONSTANTS}
    if makes and (top, low) != (2.0**127, 0.0):
        texts["init_scale"] = f"min({number(top)}, max({number(low)}, {texts['init_scale']}))"
    if "factors" in traits.without and makes:
        texts |= {"growth_factor": "2.0", "backoff_factor": "0.5"}
    growth, backoff = (texts[each] for each in FACTORS)
    texts["factor"] = f"max({growth}, 1 / {backoff})" if makes else growth
    texts |= {"min_scale": number(traits.min_scale or 0.0), "hysteresis": str(traits.hysteresis)}
    given = [f"{known[each]}={text}" for each, text in texts.items() if each in known]
    if given == [f'{each}=rule["{each}"]' for each in CONSTANTS]:
        given = ["**rule"]
    rule = value({each: getattr(Rule(), each) for each in CONSTANTS})
    lines = [f"rule = {rule} | constants", f"scaler = {peer.__name__}()", f"scaler.start({', '.join(given)})"]
    if len(lines[-1]) > WIDTH - 10:
        lines[-1:] = ["scaler.start(", *(f"    {each}," for each in given), ")"]
    return "\n    ".join([f"def {name}(**constants):", *lines, "return scaler"])


def prove(peer: Peer, sources: Sequence[str]) -> list[str]:
    """Run tests in the peer's own environment, where ampsim is not to be found.

    Returns:
        by what each fails: the exception's name; "" where it passes.

    Raises:
        RuntimeError: the process ended before the last.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended, last = run_apart(
        sources, limit=LIMIT * len(sources), python=environments.python(peer.environment), cwd="/",
        env={**kept, **environments.variables(peer.environment), "PYTHONNOUSERSITE": "1"},
    )  # fmt: skip
    if len(ended) != len(sources):
        raise RuntimeError(f"{peer.name}: {len(ended)} of {len(sources)} tests ended; the process said last: {last}")
    return [each.partition(" ")[0] for each in ended]
