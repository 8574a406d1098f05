"""The changelog: every event of a feed with its source position."""
