"""Lessons and labs as text, JSON, SVG and HTML."""
