"""How nodes and jobs come to an end on purpose: drains, requests for them, the end of a job."""
