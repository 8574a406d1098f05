"""A changefeed's settings: sink URI, TOML, filters, topics, client options."""
