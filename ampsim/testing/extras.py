"""What to install for a package that is missing."""

_CURES = {"hypothesis": "ampsim[testing]", "pytest": "pytest", "torch": "ampsim[torch]"}


def missing(error: ModuleNotFoundError) -> ImportError:
    """Return the same error with its cure, where an extra installs the package that is missing."""
    cure = _CURES.get((error.name or "").split(".")[0])
    return ImportError(f"{error}: pip install '{cure}'", name=error.name) if cure else error
