"""Readers of training logs: each turns a file into a `History`."""
