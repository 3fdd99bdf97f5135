"""A tiny random StarCoder2 and the logits that `transformers` computes: python make_model.py

Needs torch, transformers and safetensors.
"""

import pathlib

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent / "model"
torch.manual_seed(1)
config = transformers.Starcoder2Config(
    vocab_size=31, hidden_size=64, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=1024, sliding_window=37, bos_token_id=0, eos_token_id=1, pad_token_id=None, attn_implementation="eager",
)
model = transformers.Starcoder2ForCausalLM(config).eval()
with torch.no_grad():
    for name, weight in model.named_parameters():
        # Norms and biases that are not those of a new model, so that leaving one out shows.
        weight.normal_(1.0 if "norm.weight" in name or "layernorm.weight" in name else 0.0, 0.2)
    tokens = torch.randint(0, config.vocab_size, (256,))
    logits = model(tokens[None]).logits[0]
model.save_pretrained(OUT)
(OUT / "generation_config.json").unlink(missing_ok=True)
save_file({"tokens": tokens, "logits": logits.float().contiguous()}, OUT / "expected.safetensors")
