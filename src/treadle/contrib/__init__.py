"""Treadle with other libraries. Each module needs the extra of the same name: `treadle[otel]`."""
