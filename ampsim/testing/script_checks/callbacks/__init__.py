"""Callbacks that check the training of a framework's Trainer."""
