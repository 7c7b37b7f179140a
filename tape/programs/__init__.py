"""Programs: how pending entries run, interpreted at first and compiled when they come back."""
