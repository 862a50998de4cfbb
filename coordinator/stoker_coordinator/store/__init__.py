"""Where objects are kept: one Protocol, in memory and in SQLite."""
