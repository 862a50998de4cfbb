"""The daemon's own account: health, readiness, and advice on the node."""
