"""What a process decided or saw: the types of events, the log of a job, the recoveries in it."""
