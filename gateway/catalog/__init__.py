"""The models there are, what is known of them, and what a tenant pays for them."""
