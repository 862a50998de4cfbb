"""The local HTTP API: thin translations, nothing else."""
