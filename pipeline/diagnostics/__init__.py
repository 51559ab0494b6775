"""What the report shows, one noun a file."""
