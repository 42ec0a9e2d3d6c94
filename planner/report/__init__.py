"""The HTML report and its JSON."""
