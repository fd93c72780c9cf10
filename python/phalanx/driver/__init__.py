"""The driver's side of a run: what is checked, packed and kept there."""
