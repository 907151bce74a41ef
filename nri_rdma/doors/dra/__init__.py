"""The DRA driver (Dynamic Resource Allocation, v1) for pools with door = claims."""
