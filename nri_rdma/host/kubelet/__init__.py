"""The kubelet's reports about the pods of its node."""
