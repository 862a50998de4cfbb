"""The only room that speaks gRPC to containerd; hands out its own values and errors."""
