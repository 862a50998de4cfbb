"""Durable state of the daemon (SQLite)."""
