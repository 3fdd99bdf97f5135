"""Open WebUI in front of `riffle serve`: its list of models, its answers beside the server's own, and its page in headless Chromium.

usage: open_webui.py openai|ollama URL_OF_OPEN_WEBUI URL_OF_RIFFLE MODEL_NAME FOLDER_FOR_PICTURES
"""

import json
import re
import sys
import time
import urllib.request

from playwright.sync_api import sync_playwright

MODE, URL, RIFFLE, MODEL, PICTURES = sys.argv[1:]
# With a word that a right answer has.
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "Which planet is known as the Red Planet?": "Mars",
    "What is 7 times 8?": "56",
    "Write a Python function that returns the square of a number.": "def ",
    "How many days does a week have?": "seven|7",
    "What is the chemical formula of water?": "H2O|H₂O",
    "Who wrote the play Hamlet?": "Shakespeare",
    "What is the opposite of hot?": "cold",
}
LIMITS = {"temperature": 0, "max_tokens": 48}


def call(path, body=None, token=None, server=URL):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server + path, data, {"Content-Type": "application/json"})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def wait_until_up():
    for _ in range(300):
        try:
            return call("/health")
        except OSError:
            time.sleep(1)
    sys.exit("Open WebUI does not come up")


def messages(question):
    return {"model": MODEL, "messages": [{"role": "user", "content": question}]}


def own_answer(question):
    """The server's, without Open WebUI."""
    asked = {**messages(question), **LIMITS}
    return json.loads(call("/v1/chat/completions", asked, server=RIFFLE))["choices"][0]["message"]["content"]


def whole(question, token):
    """The answer as Open WebUI tells it. Its page gives settings as `params`."""
    body = {**messages(question), "params": LIMITS, "stream": False}
    answer = json.loads(call("/api/chat/completions", body, token))
    assert answer["usage"]["completion_tokens"] > 0, answer
    return answer["choices"][0]["message"]["content"]


def streamed(question, token):
    events = call("/api/chat/completions", {**messages(question), "params": LIMITS, "stream": True}, token).split("\n")
    events = [line[len("data: ") :] for line in events if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    pieces = [json.loads(event).get("choices") for event in events[:-1]]
    return "".join(choices[0]["delta"].get("content") or "" for choices in pieces if choices)


def passed_on(question, token):
    """The answer by Ollama's own API, which Open WebUI passes on."""
    options = {"temperature": LIMITS["temperature"], "num_predict": LIMITS["max_tokens"]}
    lines = call("/ollama/api/chat", {**messages(question), "options": options, "stream": True}, token).splitlines()
    lines = [json.loads(line) for line in lines if line.strip()]
    assert lines[-1]["done"], lines[-1]
    return "".join(line["message"]["content"] for line in lines)


def check_api(token):
    names = [model["id"] for model in json.loads(call("/api/models", token=token))["data"]]
    assert MODEL in names, names
    ways = {"whole": whole, "streamed": streamed}
    if MODE == "ollama":
        ways["by Ollama's API"] = passed_on
        assert json.loads(call("/ollama/api/version", token=token))["version"]
    equal = dict.fromkeys(ways, 0)
    right = 0
    for question, word in QUESTIONS.items():
        wanted = own_answer(question)
        right += bool(re.search(word, wanted, re.IGNORECASE))
        for way, answer in ways.items():
            said = answer(question, token)
            equal[way] += said == wanted
            if said != wanted:
                print(f"{way}: {said!r} and not {wanted!r}")
    count = len(QUESTIONS)
    print(f"the model is listed; {right} of {count} answers of the model have the word that is right")
    for way, number in equal.items():
        print(f"{way}: {number} of {count} answers equal to the server's own")
    assert all(number == count for number in equal.values())


def ask_by_page(browser, token, model, question):
    """What the page shows as the answer."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(URL)
    page.evaluate("token => localStorage.setItem('token', token)", token)
    page.goto(f"{URL}/?models={model}")
    field = page.locator("#chat-input")
    field.wait_for(timeout=60_000)
    # A dialog with release notes covers the page at the first visit.
    page.keyboard.press("Escape")
    field.click()
    page.keyboard.type(question)
    page.keyboard.press("Enter")
    # This button comes when the answer has ended.
    page.locator(".copy-response-button").first.wait_for(timeout=1_800_000)
    page.screenshot(path=f"{PICTURES}/open-webui-{MODE}-{model}.png")
    text = page.locator(".chat-assistant").first.inner_text().strip()
    page.close()
    assert text, "the page shows no answer"
    return text


def check_page(token):
    # A small model calls tools without need: this one is not told of the page's.
    plain = {"id": "plain", "name": "plain", "base_model_id": MODEL, "meta": {"capabilities": {"builtin_tools": False}}, "params": LIMITS}
    call("/api/v1/models/create", plain, token)
    question = next(iter(QUESTIONS))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        shown, wanted = ask_by_page(browser, token, "plain", question), own_answer(question)
        assert re.findall(r"\w+", wanted) == re.findall(r"\w+", shown), (shown, wanted)
        print("the page without its tools shows the server's own answer:", shown)
        print("the page with its tools shows:", ask_by_page(browser, token, MODEL, question).replace("\n", " ")[:160])
        browser.close()


wait_until_up()
TOKEN = json.loads(call("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
check_api(TOKEN)
check_page(TOKEN)
