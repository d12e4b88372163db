"""Models of other servers as folders of a Triton repository: TorchServe archives, MLServer's model-settings.json.

`torchserve` and `mlserver` read what there is and say what becomes of it; `folder` writes it. ``runtimes/`` has the model.py
that each folder gets, with the small part of the other server's API that models see: neither server is needed to serve. This
package touches files alone, and executes nothing of what it converts.
"""

from pytriton_lite.convert.folder import Conversion, ConversionError, write
from pytriton_lite.convert.mlserver import convert_settings
from pytriton_lite.convert.torchserve import convert_archive

__all__ = ["Conversion", "ConversionError", "convert_archive", "convert_settings", "write"]
