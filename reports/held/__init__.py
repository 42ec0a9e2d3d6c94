"""What sessions with default options hold, and what in a file moves it."""
