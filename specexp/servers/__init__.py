"""Other programs' servers, watched from outside: what their drafts cost and gain, and whether they change a text."""
