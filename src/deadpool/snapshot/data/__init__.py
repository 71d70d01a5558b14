"""The position of torch's DataLoader, whatever its dataset, its order and its workers are."""
