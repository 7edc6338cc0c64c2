"""From package lists of a Debian or Ubuntu machine to graph folders; docs/debian.md says what they hold."""
