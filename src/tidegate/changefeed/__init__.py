"""A changefeed's rules: what it sends, where, and when a consumer may act on it. No I/O."""
