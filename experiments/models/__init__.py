"""Small models that show one fp16 failure each, with nothing in them that would hide it."""
