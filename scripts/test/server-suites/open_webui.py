"""Open WebUI in front of `riffle serve`: its list of models, its answers, and its page in headless Chromium.

usage: open_webui.py URL_OF_OPEN_WEBUI MODEL_NAME FOLDER_FOR_PICTURES
"""

import json
import sys
import time
import urllib.request

from playwright.sync_api import sync_playwright

URL, MODEL, PICTURES = sys.argv[1:]


def call(path, body=None, token=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
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


def check_api(token):
    names = [model["id"] for model in json.loads(call("/api/models", token=token))["data"]]
    assert MODEL in names, names
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16, "temperature": 0}
    whole = json.loads(call("/api/chat/completions", {**body, "stream": False}, token))
    said = whole["choices"][0]["message"]["content"]
    assert said and whole["usage"]["completion_tokens"] > 0, whole
    events = call("/api/chat/completions", {**body, "stream": True}, token).split("\n")
    events = [line[len("data: ") :] for line in events if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    pieces = [json.loads(event)["choices"] for event in events[:-1]]
    streamed = "".join(choices[0]["delta"].get("content") or "" for choices in pieces if choices)
    assert streamed == said, (streamed, said)
    print("models, a whole answer and a streamed one: the same text")


def check_page(token):
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(URL)
        page.evaluate("token => localStorage.setItem('token', token)", token)
        page.goto(f"{URL}/?models={MODEL}")
        field = page.locator("#chat-input")
        field.wait_for(timeout=60_000)
        # A dialog with release notes covers the page at the first visit.
        page.keyboard.press("Escape")
        field.click()
        page.keyboard.type("What is the capital of France?")
        page.keyboard.press("Enter")
        answer = page.locator(".chat-assistant").first
        answer.wait_for(timeout=120_000)
        for _ in range(900):
            if answer.inner_text().strip():
                break
            time.sleep(1)
        time.sleep(5)
        page.screenshot(path=f"{PICTURES}/open-webui.png")
        text = answer.inner_text().strip()
        assert text, "the page shows no answer"
        print("the page shows:", text[:80].replace("\n", " "))
        browser.close()


wait_until_up()
TOKEN = json.loads(call("/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
check_api(TOKEN)
check_page(TOKEN)
