"""What all messages have in common. The stub beside this module gives the type checker what protobuf does not."""

from google.protobuf.message import DecodeError, Message

__all__ = ["DecodeError", "Message"]
