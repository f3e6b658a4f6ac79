"""One adapter file per framework. A file imports the framework only inside its methods."""
