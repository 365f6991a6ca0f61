"""Models in a worker: loading and saving a role, its text, and what its forward pass computes."""
