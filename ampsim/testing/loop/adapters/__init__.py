"""Loops of real frameworks, as `check_loop` takes them; what is known to be broken in them stands in `frameworks`.

One file per framework, which alone imports it. ``make(scaler)`` there is the framework's own loop over the tiny model
of `tiny` or the data of `numpy_tiny`, ``batches`` is what it is fed; where the framework owns the loop, ``loop`` makes
a `Loop` of yours::

    from ampsim.testing.loop.adapters import lightning
    check_loop(lambda scaler: lightning.loop(scaler, MyModule()), batches)
"""
