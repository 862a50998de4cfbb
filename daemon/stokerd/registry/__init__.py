"""References, credentials and a small client of the distribution protocol."""
