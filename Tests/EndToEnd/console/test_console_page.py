"""The console's page in a browser: what it shows, and that nothing from outside acts in it."""

import base64
import json

import pytest

from console_gateway import RULES, Console
from page import Page
from program import curl, sluice, status, wait_until

HOSTILE = "<img src=x onerror=document.title='owned'>\u202e"
TABS = ["requests", "rules", "objects", "uploads", "state"]


@pytest.fixture
def page(tmp_path):
    opened = Page(tmp_path / "profile")
    yield opened
    # A 403 and the like are answers, which the browser calls errors.
    problems = [one for one in opened.findings() if "Failed to load resource" not in one]
    opened.close()
    assert not problems


def bearer(console):
    return "-H", f"Authorization: Bearer {console.caller}"


def put(console, path, *arguments):
    return status("-T", "/etc/hostname", *arguments, console.server.url(f"/b/photos/o/{path}"))


def start(page, console, tab="requests"):
    """Opens the page with its token, which then vanishes from the address."""
    page.open(f"{console.url}/#{console.token}")
    page.wait("!location.href.includes('%s')" % console.token)
    page.run(f"location.hash = '{tab}'")
    page.wait("document.querySelector('main')?.childElementCount")


def button(page, text):
    """Clicks the button with this text."""
    find = f"[...document.querySelectorAll('button')].find(b => b.checkVisibility() && b.textContent.includes({json.dumps(text)}))"
    page.wait(find)
    page.run(f"{find}.click()")


def write(page, selector, text):
    page.wait(f"document.querySelector({json.dumps(selector)})")
    page.run(f"(e => {{ e.value = {json.dumps(text)}; e.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
             f"(document.querySelector({json.dumps(selector)}))")


#: The visible field for a token.
SECRET = "[...document.querySelectorAll('input[type=password]')].find(e => e.checkVisibility())"


def fill(page, token):
    page.run(f"(e => {{ e.value = {json.dumps(token)}; e.form.requestSubmit() }})({SECRET})")


def test_a_denial_arrives_and_says_why(page, console):
    start(page, console)
    page.wait("document.body.innerText.includes('Nothing is recorded while this page is closed')")
    wait_until(lambda: console.server.process.poll() is None and put(console, "users/bob/a", *bearer(console)) == 403
               and page.run("document.querySelector('tbody tr')?.innerText.includes('users/bob/a')"), what="the denial")
    page.click("tbody a")
    page.wait("document.querySelector('aside').innerText.includes('Denied')")
    said = page.text("aside")
    assert "request.auth.uid == uid" in said and "'alice'" in said and "'bob'" in said and "6" in said, said
    page.press("Escape")
    page.wait("location.hash === '#requests'")
    # The keys of the tabs, and a reload keeps the tab and the token.
    page.press("5")
    page.wait("document.body.innerText.includes('bucket photos')")
    page.send("Page.reload")
    page.wait("document.readyState === 'complete' && document.body.innerText.includes('bucket photos')")


def test_an_edit_shows_what_would_change(page, console):
    start(page, console)
    page.wait("document.body.innerText.includes('Nothing is recorded')")
    for name in ("a", "b", "c"):
        assert put(console, f"users/alice/{name}", *bearer(console)) == 201
    page.wait("document.querySelectorAll('tbody tr').length === 3")
    page.run("location.hash = 'rules'")
    page.wait("document.querySelector('.code textarea')?.value.includes('rules_version')")
    write(page, ".code textarea", RULES.replace("request.resource.size < 1000", "request.resource.size < 1"))
    page.wait("document.body.innerText.includes('3 now denied')")
    write(page, ".code textarea", RULES.replace("allow get", "allow gett"))
    page.wait("document.body.innerText.includes('gett')")
    # Nothing was saved.
    assert console.rules.read_text() == RULES and put(console, "users/alice/d", *bearer(console)) == 201


def test_examples_of_an_analysis_are_shown(page, console, tmp_path):
    new, suite = tmp_path / "new.rules", tmp_path / "suite.json"
    new.write_text(RULES.replace("request.auth.uid == uid", "request.auth != null"))
    suite.write_text(sluice("rules", "diff", console.rules, new, "--json")[1])
    start(page, console, "rules")
    page.wait("document.querySelector('.code textarea')?.value.includes('rules_version')")
    page.run("document.querySelector('aside details').open = true")
    page.choose("input[type=file]", suite)
    page.wait("document.body.innerText.includes('expected allow, and it is denied')")
    name = json.loads(suite.read_text())["cases"][0]["name"]
    button(page, name)
    page.wait("document.querySelector('aside').innerText.includes('Denied')")
    assert page.run("document.querySelector('form.request [name=path]').value") in name
    # With the new rules each is allowed.
    write(page, ".code textarea", new.read_text())
    page.wait("document.querySelector('aside').innerText.includes('Allowed')")
    button(page, "Run the suite")
    page.wait("document.body.innerText.includes(' 0 failed')")


def test_objects_are_those_of_the_caller(page, console, tmp_path):
    console.rules.write_text(RULES.replace("match /public", "match /mine/{file=**} { allow read, write: if request.auth.uid == 'alice'; }\n    match /public"))
    wait_until(lambda: put(console, "mine/seen.txt", *bearer(console)) == 201, what="the rules")
    file = tmp_path / "movie.bin"
    file.write_bytes(bytes(20 << 20))
    start(page, console, "objects/photos/mine/")
    page.wait("/denied/i.test(document.querySelector('main').innerText)")
    page.click("#caller summary")
    page.wait(SECRET)
    fill(page, console.caller)
    page.wait("document.querySelector('main').innerText.includes('seen.txt')")
    # The caller's token is only in the page's memory.
    assert console.caller not in page.run("JSON.stringify({...sessionStorage, ...localStorage, cookie: document.cookie})")
    page.choose("input[type=file]", file)
    wait_until(lambda: status("-I", *bearer(console), console.server.url("/b/photos/o/mine/movie.bin")) == 200, what="the upload")
    page.wait("document.querySelector('main').innerText.includes('movie.bin')")
    length = curl("-sI", *bearer(console), console.server.url("/b/photos/o/mine/movie.bin")).decode().lower()
    assert f"content-length: {20 << 20}" in length


def test_an_upload_pauses_resumes_and_is_cancelled(page, console, tmp_path):
    file, length = tmp_path / "film.bin", 64 << 20
    file.write_bytes(bytes(length))
    url = console.server.url("/b/photos/o/public/film.bin")
    start(page, console, "objects/photos/public/")
    # Each slice waits, so that there is time to click.
    page.wait("document.querySelector('input[type=file]')")
    page.run("""(send => { window.fetch = async (path, init) => {
        if (init?.method === "PATCH") await new Promise(resolve => setTimeout(resolve, 40));
        return send(path, init);
    } })(window.fetch)""")

    def state(text):
        page.wait(f"document.querySelector('.transfers li')?.innerText.includes({json.dumps(text)})")

    page.choose("input[type=file]", file)
    page.wait("document.querySelector('progress')?.value > 0")
    button(page, "Pause")
    state("paused")
    sent = console.get("/api/uploads")["uploads"][0]["offset"]
    assert 0 < sent < length and status("-I", url) == 404
    button(page, "Resume")
    state("done")
    assert f"content-length: {length}" in curl("-sI", url).decode().lower()
    # A second time the object is there, and nobody wanted to replace it.
    page.choose("input[type=file]", file)
    page.wait("document.body.innerText.includes('There is an object of this name')")
    button(page, "Replace it")
    page.wait("[...document.querySelectorAll('progress')].at(-1).value > 0")
    button(page, "Pause")
    button(page, "Cancel")
    wait_until(lambda: console.get("/api/uploads")["uploads"] == [], what="the end of the session")


def test_a_wrong_token_of_a_caller_is_no_denial(page, console):
    start(page, console, "objects/photos/")
    page.wait("document.querySelector('.failure a')?.textContent === 'Why?'")
    page.click("#caller summary")
    page.wait(SECRET)
    claims = base64.urlsafe_b64encode('{"sub":"Zoë ÿÿ","exp":4102444800}'.encode()).decode().rstrip("=")
    fill(page, f"e30.{claims}.c2ln")
    page.wait("document.querySelector('#caller').innerText.includes('Zoë ÿÿ until ')")
    page.wait("document.querySelector('.failure') && !document.querySelector('.failure a')")
    assert "denied" not in page.text(".failure")


def test_shadow_rules_are_tried(page, launch, tmp_path):
    shadow = tmp_path / "shadow.rules"
    shadow.write_text(RULES.replace("if true;\n      allow", "if false;\n      allow"))
    console = Console(launch, tmp_path, extra=f"shadowRules: {shadow}\n")
    start(page, console)
    page.wait("document.body.innerText.includes('Nothing is recorded')")
    assert put(console, "users/alice/a", *bearer(console)) == 201
    assert status(console.server.url("/b/photos/o/users/alice/a")) == 200
    page.wait("document.querySelector('main').innerText.includes('shadow: denied')")
    page.run("location.hash = 'rules'")
    button(page, "shadow: ")
    page.wait("document.body.innerText.includes('1 now denied')")


def test_metrics_move(page, console):
    start(page, console, "state")
    page.wait("document.querySelector('figure')?.innerText.includes('0.0/s')")
    wait_until(lambda: put(console, "public/a") in (200, 201)
               and page.run("/[1-9]/.test(document.querySelector('figure').innerText)"), what="a rate")
    page.wait("document.querySelector('polyline').getAttribute('points').includes(',2 ')")


#: The texts of a page whose contrast is below 4.5, as WCAG 2 computes it, with their backgrounds.
CONTRAST = """(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    const rgb = colour => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data] };
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
        if (c[3] > 250) return c } return rgb("Canvas") };
    const found = [];
    for (const e of document.querySelectorAll("body *")) {
        const text = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()), style = getComputedStyle(e);
        if (!text || !e.checkVisibility() || e.disabled || e.closest("textarea") || e.classList.contains("unseen")) continue;
        const [a, b] = [light(rgb(style.color)), light(behind(e))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) found.push(`${e.tagName} ${e.className} ${e.innerText.slice(0, 30)} ${ratio.toFixed(2)}`);
    }
    return found;
})()"""


def test_hostile_names_are_text(page, launch, tmp_path):
    console = Console(launch, tmp_path)
    start(page, console)
    page.wait("document.body.innerText.includes('Nothing is recorded')")
    name = "public/%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D'owned'%3E%E2%80%AE" + "x" * 300
    assert status("-T", "/etc/hostname", "-A", HOSTILE, "-H", "Content-Type: text/html",
                  console.server.url(f"/b/photos/o/{name}")) == 201
    page.wait("document.querySelectorAll('tbody tr').length >= 1")
    page.run("document.querySelector('tbody tr:last-child a').click()")
    page.wait("document.querySelector('aside').innerText.includes('onerror')")
    for tab in ["requests", "objects/photos/public/", "rules", "state"]:
        page.run(f"location.hash = '{tab}'")
        page.wait("document.querySelector('main')?.childElementCount")
    assert page.run("document.title") != "owned" and page.run("document.querySelectorAll('main img').length") == 0
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_tab_fits_and_is_named(page, console, scheme, width):
    page.prefer(prefers_color_scheme=scheme)
    page.resize(width, 800)
    start(page, console)
    for number in range(30):
        put(console, f"users/bob/a-name-that-is-rather-long-{number}", *bearer(console))
    page.wait("document.querySelectorAll('tbody tr').length === 30")
    for tab in TABS:
        page.run(f"location.hash = '{tab}'")
        page.wait(f"document.querySelector('[aria-current=page], [aria-selected=true]')?.getAttribute('href')?.startsWith('#{tab}')")
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), tab
        named = page.controls()
        assert named and not [role for role, name in named if not name.strip()], (tab, named)
        assert page.run(CONTRAST) == []


def test_a_wrong_token_asks_for_another(page, console):
    page.open(f"{console.url}/#wrong-token")
    page.wait(SECRET)
    fill(page, console.token)
    page.wait("document.body.innerText.includes('Nothing is recorded')")


def test_an_uploaded_page_is_not_of_the_consoles_origin(page, console, tmp_path):
    """Its script does not run at the console's address, and pages of other origins get nothing."""
    script = f"<script>fetch('/api/state', {{headers: {{'X-Console-Token': '{console.token}'}}}}).then(r => document.title = r.status)</script>"
    for name, kind in (("page.html", "text/html"), ("picture.svg", "image/svg+xml")):
        (tmp_path / name).write_text(script)
        assert status("-T", tmp_path / name, "-H", f"Content-Type: {kind}", console.server.url(f"/b/photos/o/public/{name}")) == 201
        # A navigation can't send the token.
        page.open(f"{console.url}/b/photos/o/public/{name}")
        assert "unauthenticated" in page.text()
    page.open(console.server.url("/b/photos/o/public/page.html"))
    answer = page.run(f"fetch('{console.url}/api/state', {{headers: {{'X-Console-Token': '{console.token}'}}}})"
                      ".then(r => r.status, e => 'refused')")
    assert answer == "refused"
    # Those refusals are errors of the page's console.
    page.problems.clear()
    page.open("about:blank#")


def test_a_foreign_name_that_leads_here_gets_nothing(console, tmp_path):
    """DNS rebinding: the name of a page is changed to resolve to this machine, so that the page may send anything."""
    page = Page(tmp_path / "rebound", options=["--host-resolver-rules=MAP rebound.test 127.0.0.1"])
    try:
        page.open(f"http://rebound.test:{console.port}/")
        assert "misdirected" in page.text()
        for path in ("/", "/app.js", "/api/state", "/api/requests", "/api/rules", "/api/uploads", "/b/photos/o/public/a"):
            found = page.run(f"fetch('{path}', {{headers: {{'X-Console-Token': '{console.token}'}}}}).then(r => r.status)")
            assert found == 421, path
        post = f"{{method: 'POST', headers: {{'X-Console-Token': '{console.token}', 'Content-Type': 'application/json'}}, body: '{{}}'}}"
        assert page.run(f"fetch('/api/rules/check', {post}).then(r => r.status)") == 421
    finally:
        page.close()
