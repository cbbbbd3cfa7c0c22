"""The `rollouts` command. Each subcommand is a module with `HELP`, `configure(parser)` and `run(options)`."""
