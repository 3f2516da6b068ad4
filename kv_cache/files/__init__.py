"""What is read and written beside a result."""
