"""One file per framework, which alone imports it: how its runs are made, and what the laws ask of them."""
