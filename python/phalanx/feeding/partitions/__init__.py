"""A DataFrame's partitions, one for each task: pyspark's own way."""
