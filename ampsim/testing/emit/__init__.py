"""The room that writes a failure as a short pytest file that needs the scaler, or the loop, alone.

scaler, loop To find the shortest failure and write it: of a scaler the check itself, of a loop what
    it comes to.
text
    The file that is written, and values as Python reads them back.
run_emitted To emit a check's failure: it is run in a process without ampsim, and what does not fail
    there is not given out.
"""
