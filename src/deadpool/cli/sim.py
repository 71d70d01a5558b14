def sim() -> None:
    pass
