"""The room that writes a failure as a short pytest file that needs the scaler, or the loop, alone.

scaler, loop, ranks
    To find the shortest failure and write it: of a scaler the law itself, of the others what it comes to.
text
    The file that is written, and values as Python reads them back.
proof
    To run what was written in a process without ampsim: what does not fail there is not given out.
"""

import sys
from typing import Any


def emit(target: str, law: str, *, ranks: int = 2, limit: float = 300.0, **options: Any) -> str:
    """Return a pytest file that imports the target alone, and was seen to fail where ampsim cannot be imported.

    Args:
        target: ``module:attribute`` of a scaler, of a loop's ``make``, or of what makes the scaler of a rank.
        law: by its name; one that scalers and loops have is a loop's where the module has ``batches``.
        ranks: of the group, for a law of ranks.
        limit: seconds that the written test may take; 0 is no limit.
        options: of `ampsim.testing.emit.scaler.write`.

    Raises:
        ValueError: the law holds, is not asked of this target, or has no short test; or there is no such law.
    """
    from ampsim.testing.emit import loop, proof, scaler
    from ampsim.testing.emit import ranks as of_ranks
    from ampsim.testing.kit.laws import LAWS
    from ampsim.testing.kit.subject import load
    from ampsim.testing.law import chosen
    from ampsim.testing.loop.judge import LAWS as LOOP_LAWS
    from ampsim.testing.ranks.laws import LAWS as RANK_LAWS

    chosen({**RANK_LAWS, **LOOP_LAWS, **LAWS}, [law])  # refuses an unknown one
    load(target)
    feeds = hasattr(sys.modules[target.partition(":")[0]], "batches")
    if law in LOOP_LAWS and (feeds or law not in LAWS):
        source, raises = loop.write(law, target)
    elif law in RANK_LAWS:
        source, raises = of_ranks.write(law, target, ranks)
    else:
        source, raises = scaler.write(law, target, **options)
    proof.require_failure(source, raises=raises, limit=limit)
    return source
