"""The inventory: what one rank does and holds in one training step. Memory, time and traffic are views of it."""
