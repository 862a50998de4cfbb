"""What keeps wishes true: image jobs, schedules, requests to nodes. Each is a pure decision and a small executor."""
