"""HTTP: objects by their Kubernetes-style paths. Translations only."""
