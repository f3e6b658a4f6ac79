"""Tickets, iterations, and threads, without tensors."""
