"""What other engines are told about speculation: one file an engine, its fields with their bounds and rules."""
