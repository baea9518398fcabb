"""Budgets: what may be spent in a window of time, held before the work and settled after it."""
