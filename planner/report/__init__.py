"""Results for people and programs: documents, text for a terminal, pages, traces."""
