"""Machines and fabrics that do not exist, as the files and texts that real ones show."""
