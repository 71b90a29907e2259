"""dips learns which K interactions of each user's history to keep."""

__version__ = "0.1.0"
__all__ = ["__version__"]
