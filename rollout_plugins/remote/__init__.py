"""Runs in object stores, on the Hugging Face Hub, and on any other filesystem that fsspec supports."""
