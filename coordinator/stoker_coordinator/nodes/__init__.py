"""The link to the nodes: who they are, whether they are there, what they say, and what they are told."""
