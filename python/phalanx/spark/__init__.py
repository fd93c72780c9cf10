"""Spark as its driver sees it: the session, its versions, and what its JVM has of Phalanx."""
