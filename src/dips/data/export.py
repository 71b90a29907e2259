"""Tables out: columns as Parquet or CSV, whole or not at all. Knows nothing of what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dips.data.atomic import written
from dips.errors import ConfigError

SUFFIXES = (".parquet", ".csv")


def write_columns(columns: Mapping[str, Any], path: Path) -> None:
    """Write to `path`; its ending decides the format."""
    check_suffix(path)
    import polars

    frame = polars.DataFrame({name: _plain(values) for name, values in columns.items()})
    with written(path) as part:
        if path.suffix == ".parquet":
            frame.write_parquet(part)
        else:
            frame.write_csv(part)


def check_suffix(path: Path) -> None:
    """Refuse a path whose ending names no format, before the work is done."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the name must end in {' or '.join(SUFFIXES)}")


def _plain(values: Any) -> Any:
    """Strings as a list: polars does not read arrays of objects."""
    return values.tolist() if getattr(values, "dtype", None) == np.dtype(object) else values
