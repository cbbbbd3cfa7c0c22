"""Widgets of the viewer's screens."""
