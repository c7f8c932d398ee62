"""Other projects' engines, which are measured, tuned and compared with our own loop."""
