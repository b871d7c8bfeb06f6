"""treadle: a durable, type-safe work queue and workflow engine."""

__version__ = "0.1.0"

__all__ = ["__version__"]
