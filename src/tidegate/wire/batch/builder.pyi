"""The change batch under construction, compiled: see builder.pyx."""

FAULTS: tuple[tuple[str, str], ...]
