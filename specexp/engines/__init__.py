"""Other projects' engines, to be measured, tuned and compared with our own."""
