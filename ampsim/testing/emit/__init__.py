"""The room that writes a failure of the kit, or of a loop, as a short pytest file that needs the peer alone.

case
    A failure of a scaler with what a template writes of it, and the table of templates.
scale, calls, protocol, checkpoints, numerics
    Templates, one per check, under the check's name: code that drives a scaler and asserts what the law says.
scaler, loop, ranks
    To find the shortest failure of a scaler, of a loop or of several ranks' scalers and write it.
proof
    To run what was written in a process without ampsim: what does not fail there is not given out.
"""
