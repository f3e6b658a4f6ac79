"""Why some mutants are no bugs: the arguments, by file and by the lines that differ."""

ARGUMENTS: dict[tuple[str, str], str] = {}
