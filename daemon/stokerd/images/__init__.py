"""Warm images: what is wanted, what fits, what is pulled, what is pinned."""
