"""Deployments rolled out: what differs, who follows, who runs what."""
