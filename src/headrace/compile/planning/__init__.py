"""From a resolved view to its plan: partial, combine, final."""
