"""Pods and containers of the node, and containers recreated in place."""
