"""Treadle with other libraries. Each module needs the extra of the same name, as in `treadle[otel]`; `celery`
needs none."""
