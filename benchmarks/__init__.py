"""Measurements of Kappa, each beside a peer or a limit in the same run."""
