from pytriton_lite.binding.decorators import ConstantPadder as ConstantPadder
from pytriton_lite.binding.decorators import batch as batch
from pytriton_lite.binding.decorators import fill_optionals as fill_optionals
from pytriton_lite.binding.decorators import first_value as first_value
from pytriton_lite.binding.decorators import group_by_keys as group_by_keys
from pytriton_lite.binding.decorators import group_by_values as group_by_values
from pytriton_lite.binding.decorators import pad_batch as pad_batch
from pytriton_lite.binding.decorators import sample as sample
from pytriton_lite.binding.decorators import triton_context as triton_context
from pytriton_lite.binding.request import Request as Request
from pytriton_lite.binding.specification import DynamicBatcher as DynamicBatcher
from pytriton_lite.binding.specification import QueuePolicy as QueuePolicy
from pytriton_lite.binding.specification import Tensor as Tensor
from pytriton_lite.binding.specification import model as model
from pytriton_lite.embedding import InferenceError as InferenceError
from pytriton_lite.embedding import Server as Server

__version__: str
INTERPRETED_VARIABLE: str
