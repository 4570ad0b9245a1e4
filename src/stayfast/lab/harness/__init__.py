"""What every proof stands on: claims and figures, processes, load, virtual time."""
