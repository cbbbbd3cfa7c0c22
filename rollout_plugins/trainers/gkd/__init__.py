"""Hosts of TRL's GKD, GOLD and IWOPD: supervised trainers whose student answers some prompts itself."""
