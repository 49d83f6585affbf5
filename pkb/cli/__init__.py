"""The command line: parses arguments, shows progress, prints results, sets exit codes. Decides nothing."""
