"""What tests share: made records and outcomes, toy models, countdowns."""
