"""Runs that are not, or not only, on this machine's disk: object stores, the Hub, and whatever else fsspec knows."""
