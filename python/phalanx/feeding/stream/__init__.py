"""Data sets that go from running Spark tasks straight to the ranks."""
