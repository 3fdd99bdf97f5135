"""The one matrix that makes a layer of the shipped hybrid model predict further tokens now and then, for the tests of drafts.

    python scripts/train_predictor.py

Needs torch, transformers, tokenizers and safetensors; two minutes on a CPU. The shipped model has no layer for further tokens. The tests give it one
whose parts are copies of the model's own: its second layer and its final norm. What joins the embedding of a token with the hidden state
before it is trained here, on the shipped text, to say what the model will say next. Written to tests/vectors/predictor.safetensors:
`mtp.fc.weight` [128, 256].
"""

import copy
import pathlib

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

CRATE = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = CRATE.parent.parent / "fixtures"
LAYER, TOKENS, LENGTH, STEPS = 1, 24_576, 512, 600


def main():
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(FIXTURES / "model-hybrid", dtype=torch.float32).eval()
    text = (FIXTURES / "text" / "prophets.txt").read_text()
    tokens = Tokenizer.from_file(str(FIXTURES / "model-hybrid" / "tokenizer.json")).encode(text[: 6 * TOKENS]).ids
    tokens = torch.tensor(tokens[: len(tokens) // LENGTH * LENGTH]).view(-1, LENGTH)
    with torch.no_grad():
        hidden = torch.cat([model.model(rows[None]).last_hidden_state for rows in tokens])
        said = model.lm_head(hidden).argmax(-1)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    body = transformers.Qwen3_5TextModel(config).eval()
    body.layers[0].load_state_dict(model.model.layers[LAYER].state_dict())
    body.norm.load_state_dict(model.model.norm.state_dict())
    body.requires_grad_(False)
    model.requires_grad_(False)
    width = config.hidden_size
    norm = lambda rows: rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)  # noqa: E731
    fc = torch.nn.Linear(2 * width, width, bias=False)
    joined = torch.cat([norm(model.model.embed_tokens(tokens[:, 1:])), norm(hidden[:, :-1])], -1)
    targets = said[:, 1:]
    kept = len(tokens) - 4
    optimizer = torch.optim.Adam(fc.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=STEPS)
    for step in range(STEPS):
        rows = torch.randint(0, kept, (4,))
        logits = model.lm_head(body(inputs_embeds=fc(joined[rows])).last_hidden_state)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(step, f"{loss.item():.3f}", flush=True)
    with torch.no_grad():
        logits = model.lm_head(body(inputs_embeds=fc(joined[kept:])).last_hidden_state)
        print(f"agrees with {(logits.argmax(-1) == targets[kept:]).float().mean():.3f} of held-out tokens")
    save_file({"mtp.fc.weight": fc.weight.detach().bfloat16().contiguous()}, CRATE / "tests" / "vectors" / "predictor.safetensors")


if __name__ == "__main__":
    main()
