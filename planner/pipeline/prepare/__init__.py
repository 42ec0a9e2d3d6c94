"""Before planning: the model loaded, optimized, sized, costed; the request as settings of a search."""
