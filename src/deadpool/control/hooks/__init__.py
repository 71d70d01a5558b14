"""What a coordinator calls when an event happens: commands and webhooks of the operator, in threads of their own."""
