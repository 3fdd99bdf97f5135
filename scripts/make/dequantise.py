"""Writes a GGUF file again with its quantised weights in f32 or f16, by the quantisation code of the `gguf` package.

    python dequantise.py FROM.gguf TO.gguf [f16]

Environment: the packages `gguf` and `numpy`.
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys
from gguf.quants import dequantize


def main() -> None:
    source = GGUFReader(sys.argv[1])
    wanted = np.float16 if sys.argv[3:] == ["f16"] else np.float32
    writer = GGUFWriter(sys.argv[2], source.fields[Keys.General.ARCHITECTURE].contents())
    for field in source.fields.values():
        if field.name.startswith("GGUF.") or field.name in (Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE):
            continue
        item_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], item_type)
    for tensor in source.tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, np.ascontiguousarray(tensor.data))
        else:
            weights = dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, np.ascontiguousarray(weights, dtype=wanted))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
