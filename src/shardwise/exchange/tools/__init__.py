"""The table of names of each tool: one file a family of tools."""
