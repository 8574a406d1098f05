"""Late events are repaired: which there are, what they mean for tables, and how these are fixed."""
