"""What the peers are, how each is driven, and what is written of a broken law: all of it, as it is committed."""

import inspect
import json
import os
from dataclasses import fields as attributes
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import ampsim.peers
from ampsim.core.machine import Rule
from ampsim.peers import REGISTRY
from ampsim.peers.environments import stamp, tables
from ampsim.peers.laws import LAWS, emit
from ampsim.peers.laws.drift import drift
from ampsim.peers.laws.judging import CHOICE, ENDS, LOUD, UNASKED, promise
from ampsim.peers.laws.reports import NONE, reported, search
from ampsim.peers.laws.source import driver_of
from ampsim.peers.laws.subject import PeerTraits, fields, followed, subject_of
from ampsim.peers.peer import Peer
from tests.golden import agree, defaults
from tests.peers.planted import PLANTED, Right

GOLDEN = Path(__file__).parent / "golden"
CALLS = ("start", "get_scale", "scale_loss", "step", "state_dict", "load_state_dict")


def as_text(value: Any) -> str:
    return json.dumps(value, indent=1, default=lambda each: sorted(each) if isinstance(each, frozenset) else str(each))


def beyond(usual: Any, found: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not as usual."""
    given = {each.name: getattr(found, each.name) for each in attributes(found)}
    return {
        name: dict(value) if isinstance(value, MappingProxyType) else value
        for name, value in given.items()
        if value != getattr(usual, name)
    }


def test_what_describes_each_peer() -> None:
    found = {}
    for name, peer in REGISTRY.items():
        about = {each: getattr(peer, each) for each in inspect.get_annotations(Peer)}
        told = {each: value for each, value in about.items() if value != getattr(Peer, each, None)}
        known = {field: name for field, name in fields(peer).items() if peer.constants[name] != field}  # type: ignore[arg-type]
        follows = beyond(Rule(), followed(peer, {}))  # type: ignore[arg-type]
        found[name] = as_text({**told, "fields": known, "follows": follows})
    agree(GOLDEN / "peers.txt", found)


def test_how_each_peer_is_driven() -> None:
    """As a test that is printed has it: whatever a driver does stands there."""
    found, seen = {}, set[str]()
    for name, peer in REGISTRY.items():
        test = "\n".join([f"scaler = {peer.__name__}()", *(f"scaler.{call}()" for call in CALLS)])
        texts, imports = driver_of(peer, test)
        found[name] = "\n".join([*imports, *(each.partition("\n")[0] if each in seen else each for each in texts)])
        seen |= {*texts}
    agree(GOLDEN / "drivers.txt", found)


def test_what_is_known_of_each_law() -> None:
    kinds = {"by choice": CHOICE, "at the ends": ENDS, "kept where it raises": LOUD}
    found = {}
    for law in LAWS:
        threads: dict[str, str] = {}
        for name, peer in REGISTRY.items():
            text = reported(peer, law)  # type: ignore[arg-type]
            threads |= {text: f"{threads.get(text, '')} {name}"} if text != NONE else {}
        is_of = [kind for kind, laws in kinds.items() if law in laws]
        address = search(REGISTRY["torch"], law)  # type: ignore[arg-type]
        found[law] = as_text({"promise": promise(law), "is": is_of, "search": address, "threads": threads})
    agree(GOLDEN / "laws.txt", {**found, "none": NONE, "unasked": as_text(UNASKED), "choice": as_text(CHOICE)})


def test_what_environments_are_built_of() -> None:
    agree(GOLDEN / "stamps.txt", {name: stamp(name) for name in tables()})


def test_a_peer_as_the_kit_asks_it() -> None:
    """Of each planted peer its traits, and how it drifts from a dialect that it is said to be."""
    found, usual = {}, subject_of(Right(), patience=2, late=True).traits
    for peer in dict.fromkeys((Right, *(each for peers in PLANTED.values() for each in peers))):

        class Said(peer):  # type: ignore[misc, valid-type]
            dialect = "megatron.core.DynamicGradScaler"
            constants = MappingProxyType({
                "init_scale": "init", "growth_factor": "growth", "backoff_factor": "backoff",
                "growth_interval": "interval", "min_scale": "min_scale", "hysteresis": "hysteresis",
            })  # fmt: skip

        usually = PeerTraits() if peer is Right else usual
        traits = [beyond(usually, subject_of(kind(), patience=2, late=True).traits) for kind in (peer, Said)]
        told = drift(Said(), histories=60, seed=3)
        found[peer.__name__] = "\n".join([*(json.dumps(each, default=sorted) for each in traits), repr(told)])
    agree(GOLDEN / "subjects.txt", found)


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.peers": defaults(ampsim.peers)})


def test_how_what_is_emitted_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_apart(sources: object, **given: Any) -> tuple[list[str], str]:
        kept = {
            name: value for name, value in given.pop("env").items() if name not in os.environ or name == "PYTHONPATH"
        }
        asked.append(f"{sources} {sorted(given.items())} {kept}")
        return ["AssertionError of a law", ""], "the last line"

    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.setattr(emit, "run_apart", run_apart)
    monkeypatch.setattr(emit.environments, "python", lambda name: f"python of {name}")
    monkeypatch.setattr(emit.environments, "variables", lambda name: {"OF": name})
    asked.append(repr(emit.prove(Right(), ["a", "b"])))
    with pytest.raises(RuntimeError) as error:
        emit.prove(Right(), ["a", "b", "c"])
    agree(GOLDEN / "run.txt", {"asked": "\n".join([*asked, str(error.value)])})
