"""One short file per project, named after it. A file imports the project inside its methods only."""
