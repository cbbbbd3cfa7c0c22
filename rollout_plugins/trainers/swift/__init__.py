"""ms-swift's GRPO and GKD trainers."""
