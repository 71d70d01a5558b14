"""How snapshots are protected: what a person asks for, and what the job decides itself."""
