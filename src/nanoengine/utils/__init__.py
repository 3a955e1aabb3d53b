"""What a step reads, and how weights are loaded."""
