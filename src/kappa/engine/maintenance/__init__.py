"""What one process of the cluster does for all of them."""
