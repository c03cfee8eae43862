"""The OpenAPI document of every path."""
