"""Data of an explanation that JSON can hold."""

import math
import re
from typing import Any

import numpy as np

from ampsim.core.output import printable
from ampsim.runs.read.history import Series


def series_data(series: Series, most: int | None) -> dict[str, Any]:
    """Return a series as columns of lines, steps, and values; see `Explanation.to_json`."""
    kept = series
    if most is not None and len(series) > most:
        # The first, least, largest, and last number of each part are drawn as all of them are.
        rows = list[int]()
        for part in np.array_split(np.arange(len(series)), most // 4):
            values = np.nan_to_num(series.values[part])
            extremes = [0, int(values.argmin()), int(values.argmax()), -1]
            rows += part[extremes].tolist()
        kept = series.part(np.unique(rows))
    columns = {"line": kept.lines, "step": kept.steps, "value": kept.values}
    data = {name: column.tolist() for name, column in columns.items()}
    return {"name": series.name, "role": series.role, "rank": series.rank, **data}


def plain(value: Any) -> Any:
    """Return data without inf and NaN, which JSON does not have, and without invisible characters."""
    if isinstance(value, float):
        return value if math.isfinite(value) else re.sub("^nan$", "NaN", str(value))
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
