"""Claims found on a CPU, each to be held against another device. This room knows no data file."""
