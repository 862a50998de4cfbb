"""What makes a service of a process: systemd's protocol, subsystems that are kept up, being told to stop.

The daemon and the coordinator have it in common; the command line has no use for it.
"""
