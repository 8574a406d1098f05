"""The Simple protocol in Avro."""
