"""Access to the operating system: files, locks, folders and URLs, environment variables, terminal, warnings."""
