"""Import of a Debian or Ubuntu machine's package lists into graph folders; contents in docs/debian.md."""
