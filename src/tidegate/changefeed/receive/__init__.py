"""What a consumer may act on, and in which order."""
