"""Synthetic datasets: a realistic stream, a family of such streams, and a planted answer."""

from dips.data.synthetic.family import World, family
from dips.data.synthetic.planted_world import best_rmse, planted, planted_positions
from dips.data.synthetic.simulation import stream

__all__ = ["World", "best_rmse", "family", "planted", "planted_positions", "stream"]
