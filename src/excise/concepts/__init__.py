"""Labels of any kind -> Concept: what is to be erased, encoded once, with names."""
