"""The speed of the ttrpc library beside Go's, and beside gRPC's."""
