"""What to install for a package that is missing."""

_KNOWN = ("hypothesis", "pytest", "torch")  # where the name to import is the name to install


def missing(error: ModuleNotFoundError) -> ImportError:
    """Return the same error with its cure, where it is a package that ampsim asks for."""
    name = (error.name or "").split(".")[0]
    return ImportError(f"{error}: pip install {name}", name=error.name) if name in _KNOWN else error
