"""Parts, servers, links, prices and measurements: CSV files under ``data/`` and their loaders."""
