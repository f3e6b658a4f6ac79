"""A page in which a reader moves every knob of every loss scaler over a real run, or over the reader's own log."""
