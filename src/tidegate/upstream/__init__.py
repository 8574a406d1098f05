"""The upstream database: its tables in chunks at one TSO, and rows that the feed carries in part.

`detection.open_database` gives an `UpstreamDatabase`; `chunks.chunks_of` cuts a table of it, and
`reading.ChunkReader` reads the chunks. Only `completion` needs Spark.
"""
