"""The Flow language: its syntax in two front ends, its vocabulary and its diagnostics."""
