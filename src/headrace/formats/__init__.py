"""What turns bytes into columns and columns into bytes."""
