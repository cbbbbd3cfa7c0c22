"""Record what hosts observe: load plugins, run hooks, and write to the store and the sinks."""
