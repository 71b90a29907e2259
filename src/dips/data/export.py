"""Write tables as Parquet or CSV. Knows nothing about what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dips.data.atomic_write import atomic_write
from dips.errors import ConfigError

SUFFIXES = (".parquet", ".csv")
FORMULA = r"^[=+\-@\t\r]"
"""How a text begins that a spreadsheet may take for a formula."""


def write_columns(columns: Mapping[str, Any], path: Path, *, escape_formulas: bool = False) -> None:
    """Write columns of equal length as one table, atomically.

    Args:
        columns: Values by column name.
        path: The file; its suffix, `.parquet` or `.csv`, is the format.
        escape_formulas: Whether a text in a CSV file that a spreadsheet may take for a formula gets
            an apostrophe in front. Numbers are left alone.

    Raises:
        ConfigError: If the suffix names no format.
        DataError: If the file cannot be written.
    """
    check_suffix(path)
    import polars

    frame = polars.DataFrame({name: _as_list(values) for name, values in columns.items()})
    if escape_formulas and path.suffix == ".csv":
        texts = polars.col(polars.String)
        frame = frame.with_columns(texts.str.replace(FORMULA, "'$0"))
    with atomic_write(path) as part:
        if path.suffix == ".parquet":
            frame.write_parquet(part)
        else:
            frame.write_csv(part)


def check_suffix(path: Path) -> None:
    """Check that the suffix of a path names a table format.

    Raises:
        ConfigError: If it does not.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the name must end in {' or '.join(SUFFIXES)}")


def _as_list(values: Any) -> Any:
    """Return arrays of objects as a list, because polars does not read them."""
    return values.tolist() if getattr(values, "dtype", None) == np.dtype(object) else values
