"""A run at its caller: what happens, what the ranks print and return."""
