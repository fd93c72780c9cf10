"""How Spark's data reaches the ranks."""
