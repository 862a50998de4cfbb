"""Benchmarks against peers: measured side by side in one run, shown as ratios, written as JSON."""
