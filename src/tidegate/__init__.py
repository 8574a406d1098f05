"""TiCDC change feeds in Python."""
