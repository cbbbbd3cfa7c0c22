"""What a rollout says: messages, tool calls, conversations, traces, and values of any kind."""
