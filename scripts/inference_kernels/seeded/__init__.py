"""Make weights and checkpoints from a seed; nothing here knows an engine or how an operator is captured."""
