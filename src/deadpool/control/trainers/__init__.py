"""The trainer processes of a node as its agent has them: their start, logs, activity and end."""
