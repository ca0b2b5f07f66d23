"""What one node runs: CSI for the kubelet, mounts, their descriptors, folders. See ADR 15.

    csi              decodes and checks the kubelet's requests, calls the keeper
    rpc              gRPC on Unix sockets; our errors as gRPC's codes
    volume_context   what a volume asks for; pure
    registration     announces the plugin to the kubelet
    keeper           mounts, and the descriptors that outlive server pods
    main             `penstock node`: puts these together
    proto/           messages of CSI and of the registration; hatch_build.py generates the modules

Knows no store and sees no Secret.
"""
