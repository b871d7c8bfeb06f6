"""Benchmarks: ratios in one run first, absolute figures second. `make bench`."""
