"""One check per file: a function of a loop's maker and of batches that says where the check is broken, if it is."""
