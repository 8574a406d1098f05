"""From the changelog to the tables: planning, last change per key, DDL, repair."""
