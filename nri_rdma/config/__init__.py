"""The configuration: settings, their problems and their schema."""
