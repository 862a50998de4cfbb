"""Trees of domains in the forms that others read. Pure: domains in, text out, the same for the same domains."""
