"""What must hold in the simulated world, apart from the cores: the checkers, and the truth that they compare with."""
