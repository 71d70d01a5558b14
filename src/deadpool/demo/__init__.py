"""`deadpool demo`: a small GPT is trained twice, the second time with a node killed in mid-step."""
