"""Why some mutants are no bugs: the arguments, by file and by the lines that differ."""

ARGUMENTS = {
    (
        "ampsim/jax/grad.py",
        "- if axis_name is not None:\n+ if (axis_name is not None) or True:",
    ): "jax.lax.pcast to no axis returns the argument as it is",
}
