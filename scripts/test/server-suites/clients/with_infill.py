"""Fill in the middle: the requests of llama.vim, Twinny and Continue to a model that was trained for it.

Each client asks for the same gaps in code. The text that it would insert has to begin as expected.
"""

import json
import urllib.request

from asking import MODEL, URL, check

# The text before a gap, the text after it, and what the gap has to begin with.
GAPS = [
    ("def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n", "a + b"),
    ("def is_even(number):\n    return number % 2 ", "\n\nassert is_even(4)\n", "== 0"),
    ("import json\n\n\ndef load(path):\n    with open(path) as file:\n        return json.", "\n", "load(file)"),
    ("class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = ", "\n\n    def length(self):\n", "y"),
    ('const words = text.split(" ");\nconst count = words.', ";\nconsole.log(count);\n", "length"),
    ('def greet(name):\n    print(f"Hello, {', '}!")\n\n\ngreet("Ada")\n', "name"),
    ("fn largest(values: &[i32]) -> Option<&i32> {\n    values.iter().", "\n}\n", "max()"),
    ("total = 0\nfor number in [1, 2, 3]:\n    total += ", "\nprint(total)\n", "number"),
]
OTHER_FILE = {"filename": "shapes.py", "text": "def circumference(radius):\n    return 2 * 3.14159 * radius\n", "time": 1_700_000_000}
# What llama.vim shows beside its suggestion.
TIMINGS = [f"timings/{part}_{name}" for part in ("prompt", "predicted") for name in ("n", "ms", "per_second")]


def post(path: str, body: dict) -> str:
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return response.read().decode()


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def llama_vim(prefix: str, suffix: str, **more) -> dict:
    """The lines before the cursor's are the prefix, and the cursor's line up to it the prompt."""
    before, newline, line = prefix.rpartition("\n")
    body = {
        "input_prefix": before + newline,
        "input_suffix": suffix,
        "input_extra": [OTHER_FILE],
        "prompt": line,
        "n_predict": 16,
        "n_indent": len(line) - len(line.lstrip()),
        "top_k": 40,
        "top_p": 0.99,
        "temperature": 0.0,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", *TIMINGS, "truncated", "tokens_cached"],
    }
    return json.loads(post("/infill", {**body, **more}))


def spelt(prefix: str, suffix: str) -> str:
    """Twinny writes the model's marks into the prompt itself."""
    return f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"


def twinny_llama_cpp(prefix: str, suffix: str) -> str:
    body = {"prompt": spelt(prefix, suffix), "stream": True, "temperature": 0.0, "max_tokens": 16, "stop": ["<|endoftext|>", "<|file_sep|>"]}
    return "".join(event["content"] for event in events(post("/completion", body)))


def twinny_lm_studio(prefix: str, suffix: str) -> str:
    body = {"model": MODEL, "prompt": spelt(prefix, suffix), "stream": True, "temperature": 0.0, "max_tokens": 16, "stop": ["<|endoftext|>"]}
    return "".join(event["choices"][0]["text"] for event in events(post("/v1/completions", body)) if event["choices"])


def twinny_ollama(prefix: str, suffix: str) -> str:
    options = {"temperature": 0.0, "num_predict": 16, "stop": ["<|endoftext|>"]}
    body = {"model": MODEL, "prompt": spelt(prefix, suffix), "stream": True, "keep_alive": "5m", "raw": True, "options": options}
    return "".join(json.loads(line)["response"] for line in post("/api/generate", body).splitlines())


def continue_ollama(prefix: str, suffix: str) -> str:
    options = {"temperature": 0.0, "num_predict": 16, "stop": ["<|endoftext|>", "\n\n"]}
    body = {"model": MODEL, "prompt": prefix, "suffix": suffix, "raw": True, "stream": True, "keep_alive": 1800, "options": options}
    return "".join(json.loads(line)["response"] for line in post("/api/generate", body).splitlines())


def openai_suffix(prefix: str, suffix: str) -> str:
    body = {"model": MODEL, "prompt": prefix, "suffix": suffix, "max_tokens": 16, "temperature": 0.0}
    return json.loads(post("/v1/completions", body))["choices"][0]["text"]


CLIENTS = {
    "llama.vim": lambda prefix, suffix: llama_vim(prefix, suffix)["content"],
    "Twinny, llama.cpp": twinny_llama_cpp,
    "Twinny, LM Studio": twinny_lm_studio,
    "Twinny, Ollama": twinny_ollama,
    "Continue, Ollama": continue_ollama,
    "OpenAI's suffix": openai_suffix,
}


def main() -> None:
    warmed = llama_vim("", "", n_predict=0, samplers=[], response_fields=[""], t_max_prompt_ms=1, t_max_predict_ms=1)
    check("llama.vim: other files are read ahead", isinstance(warmed, dict), warmed)
    told = llama_vim(*GAPS[0][:2])
    check("llama.vim: fields of the answer", {"content", *TIMINGS} <= told.keys(), told)
    for name, ask in CLIENTS.items():
        answers = [(ask(prefix, suffix), wanted) for prefix, suffix, wanted in GAPS]
        wrong = [pair for pair in answers if not pair[0].strip().startswith(pair[1])]
        check(f"{name}: {len(GAPS) - len(wrong)} of {len(GAPS)} gaps as expected", len(wrong) <= 1, wrong)


if __name__ == "__main__":
    main()
