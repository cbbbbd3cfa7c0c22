"""A real, tiny tool-calling GRPO run: CPU, no network, half a minute. What `rollouts demo` trains."""
