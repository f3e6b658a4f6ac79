"""A page that replays recorded runs under two loss scalers with sliders for their settings."""
