"""How a run ends badly: every rank says why it stopped, and the launcher makes one message of it."""
