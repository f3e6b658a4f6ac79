"""One function per rule, in the file of what it asks about; `rules.toml` has their words."""
