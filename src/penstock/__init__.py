"""Penstock feeds training jobs from object storage at the speed of the page cache."""

__version__ = "0.1.0"
