"""What the gateway does now and did in the last hour: windows of traffic, snapshots, frames, and their ring on disk."""
