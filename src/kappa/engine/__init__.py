"""Durable jobs on PostgreSQL: lanes, leases, adoption, maintenance. Knows nothing of graphs."""
