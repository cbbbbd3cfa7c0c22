"""Hosts of ms-swift's GRPO and GKD trainers."""
