"""Our own subset of CRI v1 and of containerd's API, and the code generated from it."""
