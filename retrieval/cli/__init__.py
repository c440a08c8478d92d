"""The command `retr`: the only place for typer, printing and exit codes."""
