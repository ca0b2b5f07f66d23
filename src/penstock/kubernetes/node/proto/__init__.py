"""Messages of CSI and of the kubelet, generated from the .proto files by `hatch_build.py`."""
