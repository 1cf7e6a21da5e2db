"""What a person sees in a terminal: the table of a summary, sparklines, a progress bar."""
