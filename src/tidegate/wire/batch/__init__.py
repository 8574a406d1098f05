"""The change batch: the one columnar form that decoders write and encoders read."""
