"""The DRA driver (Dynamic Resource Allocation, v1) for the pools that pods request by a ResourceClaim (`door =
"claims"` in the settings)."""
