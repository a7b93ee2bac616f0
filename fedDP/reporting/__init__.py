"""What a person sees of a run: progress lines and tables."""
