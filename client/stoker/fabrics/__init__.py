"""Dumps of fabrics, read: the daemon looks for its own links in them, the coordinator for all of them. Pure."""
