"""Before a run: what the caller asks for, checked, and packed for the ranks."""
