"""Requests, blocks, scheduling and execution."""
