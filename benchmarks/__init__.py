"""Benchmarks: ratios within one run first, absolute figures second. `make bench`."""
