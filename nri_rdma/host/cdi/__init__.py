"""The CDI folders of this host: read, watched and written."""
