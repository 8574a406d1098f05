"""The parts of a mirror's step, each with one concern; `lake.job.mirror` puts them together."""
