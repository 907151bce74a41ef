from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class StoreGetRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class StoreGetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ControllerStopRequest(_message.Message):
    __slots__ = ("sandbox_id", "sandboxer")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    SANDBOXER_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    sandboxer: str
    def __init__(self, sandbox_id: _Optional[str] = ..., sandboxer: _Optional[str] = ...) -> None: ...

class ControllerStopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ControllerShutdownRequest(_message.Message):
    __slots__ = ("sandbox_id", "sandboxer")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    SANDBOXER_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    sandboxer: str
    def __init__(self, sandbox_id: _Optional[str] = ..., sandboxer: _Optional[str] = ...) -> None: ...

class ControllerShutdownResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
