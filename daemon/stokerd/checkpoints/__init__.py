"""Checkpoints: memory and root filesystem of a container at one instant, kept, checked, removed."""
