"""One law per file: a function of a loop's maker and of batches that says where the law is broken, if it is."""
