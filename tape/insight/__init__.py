"""Looking at the tape: what is on it, as text and as a picture, and as a function."""
