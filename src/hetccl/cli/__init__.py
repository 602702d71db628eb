"""The `hetccl` command. One file a subcommand; `main` puts them together, `show` formats numbers."""
