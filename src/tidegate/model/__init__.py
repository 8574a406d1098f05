"""What a change is: events, schemas, MySQL types, timestamps, errors. Standard library only."""
