"""One function per rule: whether an event is a finding, or the places that are."""
