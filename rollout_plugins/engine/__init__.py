"""From a host's batch to plugins, store and sinks."""
