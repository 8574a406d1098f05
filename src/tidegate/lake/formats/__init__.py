"""Table formats: Iceberg and Delta."""
