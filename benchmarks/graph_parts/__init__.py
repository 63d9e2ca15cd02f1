"""What `benchmarks.graph` is made of."""
