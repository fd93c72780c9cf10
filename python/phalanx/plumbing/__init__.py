"""What several rooms need and no room owns. It imports nothing else of Phalanx."""
