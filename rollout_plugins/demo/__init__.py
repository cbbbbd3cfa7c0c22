"""A real, tiny tool-calling GRPO run: CPU, no network, under a minute. What `rollouts demo` trains."""
