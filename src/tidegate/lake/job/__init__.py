"""The mirror as an application: settings, rounds and steps, upkeep."""
