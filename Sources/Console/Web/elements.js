// Helpers to make elements and texts. Data gets in as text only.

const present = children => children.flat(9).filter(child => child || child === 0);
// Replaces the content. Lists are flattened, absent children are skipped.
export const put = (element, ...children) => element.replaceChildren(...present(children));
export const encode = encodeURIComponent;
export const json = value => ({body: JSON.stringify(value), headers: {"Content-Type": "application/json"}});
export const tell = (type, detail) => document.dispatchEvent(new CustomEvent(type, {detail}));

// Makes an element: h("button.primary", {onclick}, "Text"), or without attributes.
export function h(tag, attributes, ...children) {
	const [name, ...classes] = tag.split("."), element = document.createElement(name);
	element.className = classes.join(" ");
	if (attributes && Object.getPrototypeOf(attributes) === Object.prototype) {
		for (const key in attributes) {
			if (key in element) element[key] = attributes[key];
			else element.setAttribute(key, attributes[key]);
		}
	} else children.unshift(attributes);
	element.append(...present(children));
	return element;
}

// Makes control and format characters visible; with `lines` line breaks stay.
export const visible = (text, lines) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, found =>
	lines && /[\n\t]/.test(found) ? found : `\\u${found.codePointAt().toString(16).padStart(4, "0")}`);

// A text of others, isolated. What exceeds `limit` is behind a button.
export function shown(value, limit = 400, lines = false) {
	const text = String(value), more = text.length > limit && link(`… ${count(text.length - limit)} more`,
		() => put(more.parentNode, visible(text, lines)));
	return h("bdi", visible(text.slice(0, limit), lines), more);
}

export const cut = (text, limit = 80) => h("bdi", visible(text.slice(0, limit)), text.length > limit && "…");

export const button = (text, onclick, attributes) => h("button", {type: "button", onclick, ...attributes}, text);
export const link = (text, onclick) => button(text, onclick, {className: "link"});
// A button for what can't be undone: its second click acts.
export const asking = (text, action) => button(text, ({target}) => {
	if (target.textContent !== text) action();
	else put(target, `${text}: really?`);
}, {className: "danger", onblur: ({target}) => put(target, text)});
export const labelled = (name, control) => h("label", name, control);
export const options = list => list.map(option => h("option", {value: [option].flat()[0]}, [option].flat().at(-1)));
export const select = (attributes, list) => h("select", attributes, options(list));
export const table = (tag, columns, body) =>
	h(tag, h("thead", h("tr", columns.map(name => h(`th.${name}`, {scope: "col"}, name)))), body);
export const rows = () => h("tbody", {onclick: ({target}) =>
	target.closest("a") || target.closest("tr").querySelector("a").click()});
export const sign = isGood => isGood ? h("b.good", "✓ ") : h("b.bad", "✗ ");

export const facts = entries => h("dl", Object.entries(entries).filter(([, value]) => value > "" || value === 0)
	.map(([name, value]) => [h("dt", shown(name)), h("dd", shown(value))]));

// A denial of `what` leads to its explanation.
export function failure({message, status, code, request}, what) {
	const isDenied = what && (status === 403 || code === "unauthenticated") && request;
	return h("p.note.failure", {role: "alert"}, sign(), shown(isDenied ? `${what} is denied.` : message, 2000, true),
		status > 0 && ` (${status}) `, isDenied && h("a", {href: `#requests/${request}`}, "Why?"));
}

export const attempt = (place, action, what) =>
	action().catch(error => error.name === "AbortError" || put(place, failure(error, what)));

export const count = number => number.toLocaleString("en");

export function bytes(number) {
	const unit = number < 1024 ? 0 : Math.floor(Math.log2(number) / 10);
	return unit ? `${(number / 1024 ** unit).toFixed(1)} ${" KMGTPE"[unit]}iB` : `${Math.round(number)} B`;
}

export function duration(ms) {
	const s = ms / 1000;
	return s < 1 ? `${Number(ms.toPrecision(2))} ms` : s < 60 ? `${Number(s.toPrecision(2))} s`
		: s < 5400 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

export const date = time => new Date(time).toLocaleString("sv");
export const clock = time => `${date(time).slice(11)}.${time.slice(20, 23)}`;

export const copier = (name, text) => button(name, async ({target}) => {
	put(target, await navigator.clipboard.writeText(text).then(() => "✓ Copied", () => "✗ Not copied"));
	setTimeout(put, 1500, target, name);
});

export const quoted = text => `'${visible(text).replaceAll("'", "'\\''")}'`;

export function save(content, download) {
	const href = URL.createObjectURL(new Blob([content]));
	h("a", {href, download}).click();
	setTimeout(() => URL.revokeObjectURL(href), 60000);
}

export function debounced(action, ms) {
	let timer;
	return () => {
		clearTimeout(timer);
		timer = setTimeout(action, ms);
	};
}

export function decode(text) {
	try { return decodeURIComponent(text); } catch { return text; }
}

// The path of an object in the gateway's own API, and in Firebase's.
const named = /^(\/v0)?\/b\/[^/]+\/o\/?/;
export const objectOf = ({path, bucket}) => decode(path.replace(named.test(path) ? named : `/${bucket}/`, ""));
