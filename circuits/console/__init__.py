"""The parts of the command line and of printed results that are not about any one command."""
