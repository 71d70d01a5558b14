"""Kinds of scripts, a file for each thing that they are about."""
