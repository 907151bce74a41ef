"""The kubelet's door for pools that are asked by a resource: device plugin API v1beta1."""
