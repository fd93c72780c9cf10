"""A client of Spark Connect: what it does itself, and the way to it through the server."""
