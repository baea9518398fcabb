"""The tables by what they are for; `gateway.store.schema` has them all."""
