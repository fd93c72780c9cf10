"""Where a run's nodes live: in the driver, in Python workers of Spark, or in its executors' JVMs."""
