"""Import the object that ``module:attribute`` names: a scaler, a loop, or expected failures."""

import importlib
import traceback

from ampsim.core.validation import nearest


def load(target: str) -> object:
    """Return what ``module:attribute`` names; raise ValueError with the closest name for what is
    not there.
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise ValueError(
            f"{target!r}: expected module:attribute, e.g. torch.amp:GradScaler"
        )
    found = _import(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            public = [each for each in dir(found) if not each.startswith("_")]
            raise ValueError(
                f"{target!r}: {module_name} has no {name!r}; {nearest(name, public)}"
            )
        found = getattr(found, name)
    return found


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{name}: {error}; {name} imports it, so install it in this environment"
            ) from error
        fix = f"run in the folder of {error.name}.py, or install it"
        if name.endswith(".py") or "/" in name:
            fix = f"write {name.removesuffix('.py').replace('/', '.')}:NAME"
        raise ValueError(f"no module {error.name!r}; {fix}") from error
    except (Exception, SystemExit) as error:
        call = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            ""
            if isinstance(error, SyntaxError)
            else f" ({call.filename}:{call.lineno})"
        )  # its text has one
        raise ValueError(
            f"importing {name} raised {type(error).__name__}: {error}{place}; expected a module that can be imported"
        ) from error
