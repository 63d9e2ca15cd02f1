"""Questions: the snapshot in memory, frontier expansion in SQL, the budget over both, and what is built on them."""
