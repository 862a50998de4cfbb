"""The process as a service: what it tells systemd, what systemd hands it, reload, supervision, stop."""
