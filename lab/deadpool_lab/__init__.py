"""What a developer of DeadPool needs: simulator, chaos, generated scripts, the job of tests and benchmarks."""

from __future__ import annotations

__version__ = "0.1.0"
