"""What the kubelet tells of the pods of its node."""
