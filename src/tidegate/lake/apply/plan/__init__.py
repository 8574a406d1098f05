"""The parts of planning: tables and steps as data, then places, rows and statements."""
