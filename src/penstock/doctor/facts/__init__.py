"""Collect facts as small frozen values. Each look has a deadline, and reports what is missing as a
fact instead of raising.
"""
