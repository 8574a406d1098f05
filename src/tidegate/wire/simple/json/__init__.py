"""The Simple protocol in JSON."""
