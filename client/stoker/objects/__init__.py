"""Object types: what goes over the local API and, later, over the wire to the coordinator."""
