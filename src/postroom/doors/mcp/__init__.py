"""The MCP door: the queue's verbs as tools for a model, over streamable HTTP and over stdio."""
