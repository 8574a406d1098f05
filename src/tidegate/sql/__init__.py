"""What MySQL and TiDB statements, types and values mean. No I/O."""
