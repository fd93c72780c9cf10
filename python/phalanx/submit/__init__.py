"""`phalanx submit`: a job file as AI Platform Training takes it, run on a Spark cluster."""
