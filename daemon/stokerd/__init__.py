"""The node daemon of Stoker."""

VERSION = "0.1.0"
