"""Kappa for agents: a server of the Model Context Protocol over the HTTP API, by standard input and output or by HTTP.

It is a client of the API and of nothing else, so what an agent may do is decided, and written down, in one place.
"""
