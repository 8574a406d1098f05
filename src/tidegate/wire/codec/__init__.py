"""What the decoders and encoders of all protocols share."""
