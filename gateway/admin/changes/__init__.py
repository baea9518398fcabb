"""What the admin API changes: each change is one transaction, with its line in the audit log."""
