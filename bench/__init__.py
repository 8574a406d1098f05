"""Benchmarks: ratios against peers on the same bytes in one run. `python -m bench --help`."""
