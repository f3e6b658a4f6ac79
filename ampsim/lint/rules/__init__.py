"""The functions of the rules: whether an event is a finding, or the places that are."""
