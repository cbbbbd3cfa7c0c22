"""The built-in destinations of rollouts, one file each. Every sink is an ordinary plugin."""
