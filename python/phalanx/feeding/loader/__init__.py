"""Batches for a rank, whatever its rows come from."""
