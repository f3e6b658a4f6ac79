"""Diagnose a run from its file or its log: read, infer, find, show. It knows no framework, only what they print."""
