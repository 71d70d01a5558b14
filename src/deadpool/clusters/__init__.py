"""One folder per engine that starts the nodes of a job: how agents come to be there, how lost ones are replaced, and
which of the engine's signals mean a drain."""
