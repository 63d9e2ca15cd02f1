"""The command line `kg`."""
