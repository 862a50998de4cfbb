"""What this node is made of, and what it hangs on."""
