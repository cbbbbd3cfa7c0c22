"""A real but tiny tool-calling GRPO run for `rollouts demo`: on a CPU, without network, in half a minute."""
