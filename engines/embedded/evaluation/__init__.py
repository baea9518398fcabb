"""What weights and KV pages of several kinds make of one's own texts, and how fast they are."""
