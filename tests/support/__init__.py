"""What the tests of the repository share: programs, clusters, hosts, outages, and what processes hold."""
