"""Synthetic datasets: a realistic stream (`stream`) and a world whose best sketch is known."""

from dips.data.synthetic.planted_world import best_rmse, planted, planted_positions
from dips.data.synthetic.simulation import stream

__all__ = ["best_rmse", "planted", "planted_positions", "stream"]
