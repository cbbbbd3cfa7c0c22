"""Parts of the viewer's screens."""
