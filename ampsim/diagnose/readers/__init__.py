"""Read what a run left, whoever wrote it: one file per kind of file, each a stream of entries in bounded memory."""
