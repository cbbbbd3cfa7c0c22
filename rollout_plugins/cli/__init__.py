"""The `rollouts` command. Each command is a module with `HELP`, `configure(parser)` and `run(options)`."""
