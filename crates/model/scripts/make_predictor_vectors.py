"""A tiny random Qwen3.5 with a layer that predicts further tokens, and what that layer computes.

    python scripts/make_predictor_vectors.py [PATH_TO_LLAMA_CPP]

Needs torch, transformers and safetensors. `transformers` leaves the tensors `mtp.*` out; its own classes compute the layer here: a text model
of one attention layer, whose input joins, as in vLLM, the embedding of the next token with the hidden state behind the final norm. Written to
tests/vectors/predictor: a Hugging Face directory, and `expected.safetensors` with

- `tokens` [64], and `logits` [63, vocab_size]: of each token but the last, joined with the next;
- `drafted` [6]: the likeliest token behind `tokens`, and the likeliest ones of the layer, which is fed with its own states from the second on;
- `draft_logits` [5, vocab_size]: those they were taken from.

With PATH_TO_LLAMA_CPP its converter (package gguf) makes `model.gguf` of the directory, the layer included.
"""

import copy
import json
import pathlib
import sys

import torch
import transformers
from make_vectors import COMMON, randomise, shape
from safetensors.torch import load_file, save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "predictor"
TOKENS, DRAFTED = 64, 5
SETTINGS = shape(40, 56, 4, 2, head_dim=32, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
                 linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=8)


class Qwen3_5Predictor(torch.nn.Module):
    """Named as its family, whose norms multiply by 1 + weight."""

    def __init__(self, config):
        super().__init__()
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, Qwen3_5TextModel

        config = copy.deepcopy(config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        self.body = Qwen3_5TextModel(config)
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, embeddings, hidden):
        joined = torch.cat([self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)], dim=-1)
        return self.body(inputs_embeds=self.fc(joined)[None]).last_hidden_state[0]

    def tensors(self):
        named = {name.removeprefix("body."): value for name, value in self.state_dict().items()}
        return {f"mtp.{name}": value for name, value in named.items() if "embed_tokens" not in name}


def main():
    config = transformers.Qwen3_5TextConfig(**{**COMMON, **SETTINGS})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    predictor = Qwen3_5Predictor(config).eval().float()
    for part, seed in [(model, 1000), (predictor, 2000)]:
        randomise(part, seed)
        for parameter in part.parameters():
            parameter.data = parameter.data.to(torch.bfloat16).float()
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(OUT)
    (OUT / "generation_config.json").unlink(missing_ok=True)
    file = OUT / "model.safetensors"
    tensors = load_file(file) | {name: value.bfloat16() for name, value in predictor.tensors().items()}
    save_file(tensors, file, metadata={"format": "pt"})
    settings = json.loads((OUT / "config.json").read_text())
    settings["mtp_num_hidden_layers"] = 1
    (OUT / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    tokens = torch.randint(0, config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        hidden = model.model(tokens[None]).last_hidden_state[0]
        logits = model.lm_head(predictor(model.model.embed_tokens(tokens[1:]), hidden[:-1]))
        drafted, draft_logits = [model.lm_head(hidden[-1]).argmax()], []
        for _ in range(DRAFTED):
            text = torch.cat([tokens, torch.stack(drafted)])
            own = predictor(model.model.embed_tokens(text[1:]), hidden)
            draft_logits.append(model.lm_head(own[-1]))
            drafted.append(draft_logits[-1].argmax())
            hidden = torch.cat([hidden, own[-1:]])
    expected = dict(tokens=tokens.int(), logits=logits, drafted=torch.stack(drafted).int(), draft_logits=torch.stack(draft_logits))
    save_file({name: value.contiguous() for name, value in expected.items()}, OUT / "expected.safetensors")
    print(f"logits deviate by {logits.std():.2f}, drafted {expected['drafted'].tolist()}")
    if sys.argv[1:]:
        convert(pathlib.Path(sys.argv[1]).resolve())


def convert(llama_cpp):
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion.base import ModelBase, TextModel

    converter.get_model_class(ModelBase.load_hparams(OUT, False)["architectures"][0])

    def all_subclasses(cls):
        return {cls} | {below for child in cls.__subclasses__() for below in all_subclasses(child)}

    for model in all_subclasses(TextModel):
        model.set_vocab = lambda self: None
    sys.argv = ["convert", str(OUT), "--outtype", "bf16", "--outfile", str(OUT / "model.gguf")]
    converter.main()


if __name__ == "__main__":
    main()
