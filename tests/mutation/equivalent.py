"""Why some mutants are no bugs: the arguments, by file and by the lines that differ."""

ARGUMENTS = {
    (
        "ampsim/jax/checkpoint.py",
        "- sys.meta_path.insert(0, _Waiting())\n+ sys.meta_path.insert(1, _Waiting())",
    ): "the finder at the front knows built-in modules alone",
    (
        "ampsim/jax/grad.py",
        "- if axis_name is not None:\n+ if (axis_name is not None) or True:",
    ): "without an axis _own_copies returns the arguments as they are",
    (
        "ampsim/core/laws.py",
        "- lost_bits = min(h.scale) < 2.0**-120 or not all(map(math.isfinite, h.scale))\n"
        "+ lost_bits = min(h.scale) < 2.0**-121 or not all(map(math.isfinite, h.scale))",
    ): "a margin above 2^-126, below which float32 loses bits: the law holds between the two",
    (
        "ampsim/torch/gradients/norms.py",
        "- small = [grad for grad in grads if grad.numel() <= SMALL] if large else grads\n"
        "+ small = [grad for grad in grads if grad.numel() <= SMALL] if (large) or True else grads",
    ): "without large gradients the list is a copy of all of them",
    (
        "ampsim/torch/state/version.py",
        '- M = TypeVar("M", contravariant=True)  # what the next version is made by: a Rule or a Policy\n'
        '+ M = TypeVar("M", contravariant=False)  # what the next version is made by: a Rule or a Policy',
    ): "variance is for the type checker; nothing reads it when the program runs",
}
