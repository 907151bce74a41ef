"""The door of claims: a driver of Dynamic Resource Allocation (DRA), v1, for pools with door = claims."""
