"""The AgentX trace: read, measure and select its requests; nothing here talks to an engine."""
