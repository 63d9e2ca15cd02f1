"""Measures of the whole graph: its vocabulary, its map, and pictures of them. Pure: nothing here asks the database."""
