"""Results as people and programs see them: documents, text for a terminal, pages, traces."""
