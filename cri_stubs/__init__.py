"""Our own subset of CRI v1 and of containerd's API, and the code generated from it.

The .proto files are the source; ``python -m cri_stubs.generate`` writes the code beside them. Messages come from
``*_pb2``, clients and servicers from ``*_pb2_grpc``:

=============================================  =============================================================
``cri_stubs.cri.v1.runtime_pb2[_grpc]``        CRI: ``RuntimeServiceStub``, ``ImageServiceStub``
``cri_stubs.containerd.services.X.v1.X_pb2``   containerd's service X: containers, content, diff, events,
                                               images, introspection, leases, namespaces, snapshots, tasks,
                                               version; each with ``X_pb2_grpc`` and its one ``...Stub``
``cri_stubs.containerd.types``                 ``descriptor_pb2``, ``event_pb2`` (Envelope), ``metrics_pb2``,
                                               ``mount_pb2``, ``platform_pb2``, ``task.task_pb2``
``cri_stubs.containerd.events``                what an Envelope carries: ``container_pb2``, ``image_pb2``,
                                               ``snapshot_pb2``, ``task_pb2``
``cri_stubs.containerd.runc.options_pb2``      ``Options``, ``CheckpointOptions``, ``ProcessDetails``
``cri_stubs.anys``                             ``pack``, ``unpack`` and ``type_name`` for ``Any`` fields
=============================================  =============================================================

The stubs are typed for ``grpc.aio`` only::

    channel = grpc.aio.insecure_channel("unix:///run/containerd/containerd.sock")
    content = ContentStub(channel)
    namespace = (("containerd-namespace", "k8s.io"),)
    answer = await content.Info(InfoRequest(digest=digest), timeout=5, metadata=namespace)
    async for chunk in content.Read(ReadContentRequest(digest=digest), metadata=namespace):
        ...

A method of a stub can be handed on as ``grpc.aio.UnaryUnaryMultiCallable[Request, Response]``. Streams are best read
with ``async for``; what a call's ``read()`` returns is typed ``object``, because it may be ``grpc.aio.EOF``.
"""
