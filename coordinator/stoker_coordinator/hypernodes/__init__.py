"""What hangs on what: a live tree of domains for each fabric, from reports of nodes and central sources."""
