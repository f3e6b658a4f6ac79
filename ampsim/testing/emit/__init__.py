"""A failure as a short pytest file.

`scaler` finds the minimal failure of a scaler and writes the check itself, so that the file needs
the scaler alone. `text` writes the file, and values as Python reads them back. `run_emitted` runs
what was written, without ampsim where it does not name it: a test that does not fail is not given
out.
"""
