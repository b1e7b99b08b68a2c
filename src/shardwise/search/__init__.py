"""The space of layouts, the rules that thin it, the closed forms that prune it, and the ranking of what is left."""
