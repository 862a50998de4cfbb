"""``make demo``: the product on a real node, told as a story."""
