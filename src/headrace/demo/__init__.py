"""The shop: the example project that `init`, `demo` and `generate` share."""
