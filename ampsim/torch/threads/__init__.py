"""Tickets, the iterations that carry them, and the threads that work on them. This room knows no tensors."""
