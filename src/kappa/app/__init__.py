"""Where engine and graph meet: settings, wiring, use cases and the front ends."""
