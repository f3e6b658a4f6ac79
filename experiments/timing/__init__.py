"""Times side by side: clocks, rounds in turning order, and the variants that are timed. It knows no experiment."""
