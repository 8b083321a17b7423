// The frame of the console: the token, requests to the gateway, tabs and keys.
import {button, cut, date, decode, encode, failure, h, json, labelled, put, sign, tell} from "./elements.js";
import {follow, sample} from "./live.js";

const tabs = ["requests", "rules", "objects", "uploads", "state"];
const find = id => document.getElementById(id), main = find("main"), ready = find("ready"), menu = find("caller");
let token = sessionStorage.getItem("token"), mounted = new AbortController(), current, unmount, live, saying;

const problemOf = (status, {detail = `The gateway responded ${status}.`, code}, fields) =>
	Object.assign(new Error(detail), {status, code, request: fields?.get("x-request-id"), wait: Number(fields?.get("retry-after"))});

// Sends a request until the tab ends. Every status but success is thrown.
async function send(path, init) {
	const headers = {"X-Console-Token": token, ...init?.headers};
	const response = await fetch(path, {cache: "no-store", signal: mounted.signal, ...init, headers}).catch(error => {
		throw error.name === "AbortError" ? error : problemOf(0, {detail: "The gateway can't be reached."});
	});
	if (response.ok) return response;
	const problem = problemOf(response.status, await response.json().catch(() => ({})), response.headers);
	if (problem.status === 401 && path.startsWith("/api/")) signIn("The token is not valid.");
	throw problem;
}

const api = {
	// `kept` is what tabs keep while they are not shown.
	kept: {}, caller: {name: "anonymous", fields: {}}, send,
	get: async (path, init) => (await send(path, init)).json(),
	text: async (path, init) => (await send(path, init)).text(),
	post: (path, value) => api.get(path, {method: "POST", ...json(value)}),
	object: (path, init) => send(path, {...init, headers: {...api.caller.fields, ...init?.headers}}),
	objectPath: (bucket, name) => `/b/${encode(bucket)}/o/${name.split("/").map(encode).join("/")}`,
	on: (type, action) => document.addEventListener(type, action, {signal: mounted.signal}),
	rest: () => location.hash.split("/").slice(1).map(decode),
	// For readers of the screen, at most once a second.
	say(text) {
		api.said = text;
		saying ??= setTimeout(() => { saying = put(find("said"), api.said); }, 1000);
	},
};

// Who a token is for, as far as the page can read it.
function callerOf(token) {
	try {
		const text = atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
		const {sub, exp} = JSON.parse(new TextDecoder().decode(Uint8Array.from(text, byte => byte.charCodeAt())));
		return {name: `${sub}`, until: exp && ` until ${date(exp * 1000).slice(11, 16)}`};
	} catch { return {name: "a token"}; }
}

const secret = () => h("input", {type: "password", autocomplete: "off"});
const form = (tag, submit, ...children) => h(tag, {onsubmit: event => {
	event.preventDefault();
	submit();
}}, children);

function callerMenu() {
	const field = secret(), use = value => {
		api.caller = value ? {...callerOf(value), fields: {Authorization: `Bearer ${value}`}} : {name: "anonymous",
			fields: {}};
		put(menu.firstChild, "as ", h("b", cut(api.caller.name, 40)), api.caller.until);
		[field.value, menu.open] = ["", false];
		tell("caller");
	};
	menu.append(form("form.box", () => use(field.value.trim()), labelled("Token of the caller", field),
		h("p.faint", "For objects. A reload forgets it."),
		h("div.actions", h("button.primary", "Use the token"), button("Be anonymous", () => use("")))));
	use("");
}

async function route() {
	const name = location.hash.slice(1).split("/")[0];
	if (!tabs.includes(name)) {
		if (name) sessionStorage.setItem("token", token = name);
		history.replaceState(null, "", "#requests");
		return route();
	}
	if (!token) return signIn();
	if (!live) start();
	// The first state mounts the first tab.
	if (!api.state) return;
	if (name === current) return tell("moved");
	leave();
	current = name;
	for (const link of document.querySelectorAll("header nav a")) {
		link.ariaCurrent = link.hash === `#${name}` ? "page" : null;
	}
	put(main);
	try {
		const tab = await import(`./${name}.js`);
		if (current === name) unmount = tab.mount(main, api);
	} catch (error) {
		put(main, failure(error));
	}
}

function leave() {
	unmount?.();
	mounted.abort();
	[mounted, unmount, current] = [new AbortController()];
}

function start() {
	live = new AbortController();
	api.feed = follow(api, live.signal);
	sample(api, live.signal);
}

document.addEventListener("feed", () => {
	const banner = find("banner"), {problem} = api.feed, text = problem ? `${problem.message} Trying again …` : "";
	banner.hidden = !text;
	if (banner.textContent !== text) put(banner, text);
	if (text) put(ready, sign(), "no connection");
});
document.addEventListener("status", () => {
	const {host, version, ready: isReady} = api.state;
	put(find("host"), cut(`${host} · ${version}`));
	put(ready, sign(isReady), isReady ? "ready" : "not ready");
	if (!current) route();
});

function signIn(message) {
	live?.abort();
	leave();
	[token, live] = [];
	sessionStorage.removeItem("token");
	const field = secret();
	put(ready);
	put(main, form("form.box.signin", () => { location.hash = field.value.trim(); }, h("h2", "Open the console"),
		labelled("Console token", field), message && failure({message}), h("button.primary", "Open"),
		h("p.faint", "‘sluice serve DIR --console’ prints an address with the token.")));
	field.focus();
}

function move(row, step) {
	const rows = [...row.closest("tbody").querySelectorAll("a")], next = rows[rows.indexOf(row) + step];
	if (!next) return;
	[row.tabIndex, next.tabIndex] = [-1, 0];
	next.focus();
}

document.addEventListener("keydown", event => {
	const {key, target} = event, isTyping = target.matches("input, textarea, select");
	if (event.ctrlKey || event.metaKey || event.altKey) return;
	if (key === "Escape") {
		if (menu.open) menu.open = menu.firstChild.focus();
		else if (isTyping && !target.closest("aside")) target.blur();
		else document.querySelector("[aria-label=Close]")?.click();
	} else if (isTyping) return;
	else if (tabs[key - 1]) location.hash = tabs[key - 1];
	else if (key === "/") document.querySelector("[type=search]")?.focus();
	else if (target.matches("tbody a") && /^Arrow(Up|Down)$/.test(key)) move(target, key === "ArrowUp" ? -1 : 1);
	else return;
	event.preventDefault();
});

callerMenu();
window.addEventListener("hashchange", route);
route();
