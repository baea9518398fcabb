"""What things cost and what becomes of it: prices with dates, corrections, periods, proofs."""
