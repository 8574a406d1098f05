"""Dumps of Dumpling and TiDB Cloud, read without Spark: rows in the strings of the change batch.

`Dump.open` lists a folder and knows its instant and tables; `Dump.splits` cuts a table into parts
that can be pickled, and `read_split` reads one of them anywhere.
"""

from tidegate.upstream.dump.dump import Dump, DumpTable, Loss
from tidegate.upstream.dump.options import DumpOptions
from tidegate.upstream.dump.split import DumpFile, Fill, Split, read_split

__all__ = ["Dump", "DumpFile", "DumpOptions", "DumpTable", "Fill", "Loss", "Split", "read_split"]
