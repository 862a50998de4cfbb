"""The rig: real containerd nodes, a registry, a faulty proxy in front of it, and images made by code.

    with Registry() as registry, Node("one", "forky", expose=[registry.port]) as node:
        image = images.push(registry.address, images.simple("demo/app", layers=2))
        node.ctr("image", "pull", "--plain-http", image.reference)

A node is a process tree with a root filesystem, a network namespace, a cgroup and a directory of its own. Everything
it makes is recorded under /run/stoker-rig before it is made, so that `python -m tests.rig clean` removes what a dead
run left.
"""
