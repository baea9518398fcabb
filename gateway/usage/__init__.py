"""What tenants used, told: as a page of sums, as files, and row by row."""
