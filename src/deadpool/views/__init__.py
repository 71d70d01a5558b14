"""What reads the events and the status of a job, for people and for other programs. Nothing here changes a job."""
