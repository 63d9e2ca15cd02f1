"""The fleet: workers over HTTP do the jobs of lanes whose executor is `fleet`. See docs/fleet.md."""
