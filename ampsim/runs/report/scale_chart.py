"""Draw the chart of a loss scale as a picture, for a paper or an issue."""

import io
import math

import numpy as np

from ampsim.core.extras import load
from ampsim.runs.explain_log import Explanation

FORMATS = ("png", "svg")


def scale_chart(explanation: Explanation, kind: str) -> bytes:
    """Return the chart of the loss scale, with the skipped steps, as a picture.

    Args:
        explanation: The diagnosis of a run.
        kind: "png" or "svg".

    Returns:
        The picture.

    Raises:
        ModuleNotFoundError: If matplotlib is missing; the message has the ``pip install`` command.
        ValueError: If the log shows no loss scale, or for another kind.
    """
    if kind not in FORMATS:
        raise ValueError(f"format={kind!r}: expected png or svg")
    scale = max(explanation.history.role("scale"), key=len, default=None)
    if scale is None:
        raise ValueError(
            f"{explanation.history.source}: the log shows no loss scale, so there is no chart of it"
        )
    figure = load("matplotlib.figure").Figure(figsize=(6.4, 2.8), layout="constrained")
    axes = figure.add_subplot()
    by_step = bool(np.isfinite(scale.steps).all())
    axes.step(
        scale.steps if by_step else scale.lines,
        scale.values,
        where="post",
        color="#0072b2",
        linewidth=1.3,
    )
    axes.set_yscale("log" if (scale.values > 0).all() else "symlog", base=2)
    places = [skip.last if by_step else skip.line for skip in explanation.skips]
    places = [place for place in places if math.isfinite(place)]
    # Marks in the margin above the curve, in fractions of its height.
    axes.vlines(
        places,
        1.01,
        1.05,
        transform=axes.get_xaxis_transform(),
        color="#c44f00",
        linewidth=0.8,
        clip_on=False,
    )
    axes.set(xlabel="step" if by_step else "line of the log", ylabel="loss scale")
    axes.grid(axis="y", color="#eceef0")
    file = io.BytesIO()
    # No date and no random identifiers: equal data gives an equal file.
    load("matplotlib").rcParams["svg.hashsalt"] = "ampsim"
    figure.savefig(
        file, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None
    )
    return file.getvalue()
