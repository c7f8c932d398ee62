"""Controllers that learn before they are deployed: decoding training prompts through Lightning's Trainer."""
