"""Kappa: documents into a knowledge graph, and durable jobs, on nothing but PostgreSQL.

Four layers, each usable without those above it: `kappa.pg` (PostgreSQL plumbing), `kappa.engine` (durable
jobs), `kappa.graph` (the knowledge graph) and `kappa.app` (where they meet).
"""
