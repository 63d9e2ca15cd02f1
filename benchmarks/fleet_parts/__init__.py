"""What `benchmarks.fleet` is made of: its ground, the simulator, the plain design, the ledger, the scenarios."""
