"""The node daemon of Stoker."""
