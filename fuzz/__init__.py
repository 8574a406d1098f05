"""Fuzzing the decoders: `make fuzz`."""
