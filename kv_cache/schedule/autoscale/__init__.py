"""The autoscaler: its settings, what windows show, its two modes, and itself."""
