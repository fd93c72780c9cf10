"""Runs on one host without Spark: `phalanx run`, and `run_local`."""
