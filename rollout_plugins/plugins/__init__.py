"""Concern plugins, one file each: images, dedup, cap, redact, metrics."""
