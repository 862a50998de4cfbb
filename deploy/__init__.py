"""Ways of showing and deploying Stoker."""
