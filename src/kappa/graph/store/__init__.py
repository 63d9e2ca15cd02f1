"""Statements about the graph's tables. Functions take the connection first: callers own transactions."""
