"""Fail-slow: detect, locate, validate, mitigate."""
