"""Hosts of TRL's asynchronous trainers, which generate in a process of their own."""
