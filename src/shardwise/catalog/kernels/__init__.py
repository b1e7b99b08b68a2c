"""Measured kernels of single parts: one CSV file per part, one reading per line."""

from shardwise.catalog.kernels.tables import ProductReading, has_kernel_table, load_products

__all__ = ["ProductReading", "has_kernel_table", "load_products"]
