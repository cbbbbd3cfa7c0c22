"""What the hosts share: observing a trainer, and making rollouts of what was seen."""
