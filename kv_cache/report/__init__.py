"""What a run leaves behind: its files, its tables and the machine it ran on."""
