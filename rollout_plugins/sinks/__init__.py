"""Where rollouts can be sent, one file per destination. Each is a plugin like any other."""
