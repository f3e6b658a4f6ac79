"""What public threads say of the laws that peers break: (peer, law) -> addresses, or that none was found and when."""

from collections.abc import Mapping
from urllib.parse import quote_plus, urlsplit

from ampsim.peers.laws.law import Law
from ampsim.peers.peer import Peer

REPORTS: Mapping[tuple[str, str], str] = {}


def search(peer: Peer, law: Law) -> str:
    """Return the address of a search for a law's words in the issues of a peer's repository."""
    address = urlsplit(peer.source)
    repository = "/".join(address.path.strip("/").split("/")[:2])
    return f"https://{address.netloc}/{repository}/issues?q={quote_plus(law.words)}"
