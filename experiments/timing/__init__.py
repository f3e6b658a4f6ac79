"""Times side by side: clocks, and rounds in turning order. It knows no experiment."""
