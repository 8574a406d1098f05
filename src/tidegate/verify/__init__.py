"""Compares a lake with a database, a capture or a workload."""
