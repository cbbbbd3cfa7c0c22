"""The machine and the process: files and locks, where a run's folders are, the environment, the terminal, warnings."""
