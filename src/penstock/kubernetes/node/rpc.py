"""gRPC on Unix sockets: endpoints, the methods behind them, and our errors as gRPC's codes.

Threading: an endpoint is opened and closed by one thread at a time; methods run in its pool.
"""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import (
    NoSuchVolume,
    NotServedInTime,
    PenstockError,
    UsageError,
    VolumeBusy,
    VolumeProblem,
)

log = logging.getLogger(__name__)

# The one place where our errors become gRPC's. First match wins.
STATUS: Final[Sequence[tuple[type[Exception], grpc.StatusCode]]] = (
    (VolumeProblem, grpc.StatusCode.INVALID_ARGUMENT),
    (NoSuchVolume, grpc.StatusCode.NOT_FOUND),
    (NotServedInTime, grpc.StatusCode.DEADLINE_EXCEEDED),
    (VolumeBusy, grpc.StatusCode.ABORTED),
    (UsageError, grpc.StatusCode.FAILED_PRECONDITION),
    (PenstockError, grpc.StatusCode.INTERNAL),
    (OSError, grpc.StatusCode.INTERNAL),
)

_OWNER_ONLY = 0o600


class Endpoint:
    """Serves gRPC methods on a Unix socket."""

    def __init__(
        self, path: Path, handlers: Sequence[grpc.GenericRpcHandler], *, threads: int
    ) -> None:
        self.path = path
        self._handlers = handlers
        self._threads = threads
        self._server: grpc.Server | None = None
        self._socket: tuple[int, int] | None = None

    def open(self) -> None:
        """Serve on a new socket, which replaces any that is there.

        gRPC removes the path that it was bound to when a server ends, whatever lies there by then.
        So the socket is bound to another name and renamed: the end of a server removes nothing
        that a later one, of this process or the next, has made. The name begins with a dot: the
        kubelet ignores such names.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unnamed = self.path.with_name(f".{self.path.name}.new")
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self.path.stem)
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(self._handlers)
        try:
            server.add_insecure_port(f"unix:{unnamed}")
        except RuntimeError as error:
            raise PenstockError(
                f"{self.path}: cannot listen: {error}",
                hint="it must be a folder that this process can write to, with a short path",
            ) from error
        unnamed.chmod(_OWNER_ONLY)
        found = unnamed.stat()
        unnamed.rename(self.path)
        server.start()
        previous, self._server = self._server, server
        self._socket = found.st_dev, found.st_ino
        if previous is not None:
            previous.stop(None)

    def is_reachable(self) -> bool:
        """Tell whether the path still leads to the socket that `open` made."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._socket

    def close(self, *, grace_s: float = 1.0) -> None:
        """Remove the socket, unless another process has replaced it, and end the server."""
        if self.is_reachable():
            os.unlink(self.path)
        self._socket = None
        if self._server is not None:
            self._server.stop(grace_s).wait()
            self._server = None


def handler_of(service: ServiceDescriptor, implementation: object) -> grpc.GenericRpcHandler:
    """Return a handler for each method of a service; `implementation` has one of each name.

    A method takes a request and the call's context, and returns a response.
    """
    return grpc.method_handlers_generic_handler(
        service.full_name,
        {one.name: _handler(one, getattr(implementation, one.name)) for one in service.methods},
    )


def _handler(
    method: MethodDescriptor, call: Callable[[Any, grpc.ServicerContext], Message]
) -> "grpc.RpcMethodHandler[Any, Any]":  # generic in its stubs only
    def answer(request: Message, context: grpc.ServicerContext) -> Message:
        try:
            return call(request, context)
        except (PenstockError, OSError) as error:
            _abort(method.name, error, context)

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )


def _abort(method: str, error: Exception, context: grpc.ServicerContext) -> NoReturn:
    code = next(code for kind, code in STATUS if isinstance(error, kind))
    hint = getattr(error, "hint", None)
    text = f"{error}; hint: {hint}" if hint else str(error)
    log.warning("%s: %s: %s", method, code.name, text)
    context.abort(code, text)
