"""The central coordinator of Stoker."""
