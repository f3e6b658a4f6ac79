"""The kit judges a loss scaler: laws as checks, a subject under test, a report. It knows no threads' schedules."""
