"""What a law comes to on one peer."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ampsim.peers.laws.law import EXAMPLES, Law
from ampsim.peers.laws.trial import EndedError, NotApplicableError, RaisedError, Trial
from ampsim.peers.peer import Peer
from ampsim.peers.wire import PeerLostError
from ampsim.testing import examples as drawing
from ampsim.testing.law import BrokenError

Outcome = Literal["passed", "deviation", "defect", "not applicable", "trouble"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one law on one peer.

    Attributes:
        law: the one that was asked.
        outcome: deviation: broken, and declared, or a choice that any peer has; defect: broken, and not declared;
            trouble: the peer hung, ended its process or answered in the wrong form.
        seen: what broke it, or why it was not asked.
        reason: of a deviation, with a link.
        trial: the shortest example that broke it.
    """

    law: Law
    outcome: Outcome
    seen: str = ""
    reason: str = ""
    trial: Trial | None = field(default=None, repr=False)


def judge(peer: Peer, law: Law, *, examples: int = EXAMPLES) -> Verdict:
    """Ask a law of a peer, on histories that hypothesis draws, always the same, and shrinks.

    Args:
        peer: one that runs in this process, or a `Remote`.
        law: one of `LAWS`.
        examples: histories, at most.
    """
    asked = _Asked(peer, law)
    try:
        drawing.run(asked.example, tuple(law.draws.items()), law.found, examples)
    except PeerLostError as error:
        return Verdict(law, "trouble", str(error), trial=asked.last)
    except (BrokenError, RaisedError) as error:
        reason = peer.deviations.get(law.name) or law.choice
        return Verdict(law, "deviation" if reason else "defect", str(error), reason, asked.last)
    if not asked.judged:
        return Verdict(law, "not applicable", asked.why_not)
    return Verdict(law, "passed")


class _Asked:
    """A law that is asked: which example was last, and whether any could be judged."""

    def __init__(self, peer: Peer, law: Law) -> None:
        self.peer, self.law = peer, law
        self.judged, self.why_not = False, "no example could be judged"
        self.last = Trial(peer)
        self.lost: PeerLostError | None = None

    def example(self, **drawn: Any) -> None:
        """Run one example; nothing more is asked of a peer that was lost."""
        if self.lost is not None:
            raise self.lost
        trial = Trial(self.peer)
        try:
            self.law.function(trial, **drawn)
        except (NotApplicableError, EndedError) as error:
            self.why_not = str(error)
            return
        except PeerLostError as error:
            self.lost, self.last = error, trial
            raise
        except BaseException:
            self.last = trial  # the last example that fails is the shortest
            raise
        self.judged = True
