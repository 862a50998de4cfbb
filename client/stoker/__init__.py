"""Object types shared by Stoker's programs, the Python client and the command line.

Importing this package imports nothing else: the daemon shares the types and must not pay for the command line.
"""
