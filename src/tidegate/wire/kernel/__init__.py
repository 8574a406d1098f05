"""Bytes, strings and numbers: what the columnar batch and every protocol build on."""
