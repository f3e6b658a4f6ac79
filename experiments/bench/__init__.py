"""Speed, side by side with what people use and with a floor: `make bench` runs each file here."""
