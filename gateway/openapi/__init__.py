"""What the routes take and answer, as OpenAPI documents."""
