"""Protected steps for training loops of other libraries. Each module is for one of them and imports it on first use."""
