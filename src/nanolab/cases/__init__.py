"""The manual's fixed cases and the values they must show."""
