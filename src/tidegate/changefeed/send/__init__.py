"""What a changefeed sends, where and in which messages."""
