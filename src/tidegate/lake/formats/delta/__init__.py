"""Delta tables: each in a folder of its own, with column mapping, deletion vectors and wide types.

A table is its folder, so that a rename changes only what the table says of itself. Every commit
carries the position as its user metadata. A change of columns that rewrites no row, and whatever
changes no row at all, is one commit of the table's metadata through Delta's own transaction.
"""

from tidegate.lake.formats.delta.format import DeltaFormat, has_lake, session_settings
from tidegate.lake.formats.delta.log import DeltaLog, log_properties

__all__ = ["DeltaFormat", "DeltaLog", "has_lake", "log_properties", "session_settings"]
