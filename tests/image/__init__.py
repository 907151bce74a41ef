"""The image of deploy/image: made, unpacked, and its programs run in it. Only `make image-test` runs these."""
