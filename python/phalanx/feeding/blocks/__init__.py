"""Blocks: files of record batches that Spark's tasks write, and where ranks find them."""
