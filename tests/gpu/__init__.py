"""What is proved on a machine with a GPU, without Spark: `scripts/gpu_check` runs it."""
