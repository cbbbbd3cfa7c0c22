"""The content of rollouts: messages, tool calls, images, traces, and how any value becomes JSON, a hash or a copy."""
