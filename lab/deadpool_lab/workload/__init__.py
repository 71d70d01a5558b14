"""The training job that the demo, the benchmarks and the end-to-end tests run: a small GPT under several layouts."""
