"""`phalanx doctor`: looks at every host that a job would use, and says what would go wrong there."""
