"""Record one trainer: its runs, its rollouts and evaluations, and plugin metrics in its log."""
