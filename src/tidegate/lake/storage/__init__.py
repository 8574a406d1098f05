"""Files of a lake's own tables: where they are, how they are written, read and filtered."""
