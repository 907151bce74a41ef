"""The kubelet's device plugin API v1beta1, for pools whose devices pods request as an extended resource."""
