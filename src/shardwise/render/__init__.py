"""Records to text, JSON, SVG and HTML. Nothing here predicts; the same record always gives the same page."""
