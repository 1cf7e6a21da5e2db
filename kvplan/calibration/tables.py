"""Reading measured CSVs: what is missing or no number is said with its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvplan.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path, columns: tuple[str, ...], text: tuple[str, ...] = ()) -> pd.DataFrame:
    """A CSV with at least these columns, those not in ``text`` as numbers.

    Raises:
        InputError: missing file or column; a cell that is no number, with its line.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except FileNotFoundError:
        raise InputError("missing file of the profile", source=str(path)) from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as CSV: {error}", source=str(path)) from None
    for column in columns:
        if column not in table.columns:
            raise InputError("missing column", field=column, source=str(path), hint="found " + ", ".join(table.columns))
        if column in text:
            continue
        numbers = pd.to_numeric(table[column], errors="coerce")
        bad = numbers.isna() | np.isinf(numbers) | (numbers < 0)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                "not a number >= 0",
                field=column,
                value=table[column].iloc[row],
                source=str(path),
                line=row + 2,
            )
        table[column] = numbers.astype(float)
    if table.empty:
        raise InputError("the table has no rows", source=str(path))
    return table
