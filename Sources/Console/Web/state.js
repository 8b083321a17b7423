// The gateway's checks, metrics, addresses and configuration.
import {attempt, bytes, copier, duration, facts, h, put, shown, sign} from "./elements.js";

const rate = name => (a, b) => Math.max(0, b[name] - a[name]) / (b.time - a.time) * 1000;

// The duration in ms within which a share of the requests between two points ended.
const quantile = share => (a, b) => {
	const counts = b.limits.map(([limit, total], i) => [limit * 1000, total - (a.limits[i]?.[1] ?? 0)]);
	const wanted = (counts.at(-1)?.[1] ?? 0) * share, at = counts.findIndex(([, total]) => total >= wanted);
	if (!wanted) return null;
	const [limit, total] = counts[at], [low, below] = counts[at - 1] ?? [0, 0];
	return limit === Infinity ? low : low + (limit - low) * (wanted - below) / (total - below);
};

const perSecond = value => `${value.toFixed(1)}/s`;
const graphs = [["requests", rate("requests"), perSecond], ["5xx responses", rate("failures"), perSecond],
	["median duration", quantile(0.5), duration], ["p99 duration", quantile(0.99), duration], ["memory", (a,
		b) => b.memory, bytes]];

function svg(tag, attributes) {
	const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const name in attributes) element.setAttribute(name, attributes[name]);
	return element;
}

function graph([name, value, format], points) {
	const found = points.slice(1).map((point, i) => [point.time, value(points[i], point)]).filter(([,
		number]) => number !== null);
	const top = Math.max(...found.map(([, number]) => number)), text = found.length ? format(found.at(-1)[1]) : "–";
	const line = found.map(([time, number]) =>
		`${180 - (points.at(-1).time - time) / 5000},${31 - 29 * (number / (top || 1))}`);
	const picture = svg("svg", {viewBox: "0 0 180 32", preserveAspectRatio: "none", role: "img",
		"aria-label": `${name}: ${text}`});
	picture.append(svg("polyline", {points: line.join(" ")}));
	return h("figure", h("figcaption", name), h("b", text), picture);
}

export function mount(element, api) {
	const checks = h("div"), graphed = h("div.graphs"), about = h("div"), configuration = h("div", "Loading …");
	element.append(h("div.page", h("div.columns", h("div", h("h2", "Checks"), checks), h("div", h("h2", "Gateway"),
		about)),
		h("h2", "The last 15 minutes"), graphed, configuration));

	function update() {
		const {listeners, buckets, checks: found, ...rest} = api.state;
		put(graphed, graphs.map(each => graph(each, api.points)));
		put(checks, found.map(({name, failure: why, detail = ""}) => h("div", sign(!why), shown(name), h("span.faint", " ",
			shown(detail)),
			why && h("p.note.failure", shown(why, 1000, true)))));
		put(about, facts(rest), h("h3", "Listeners"), facts(listeners), h("h3", "Buckets and their rules"),
			facts(Object.fromEntries(buckets.map(({name, rules}) => [name, rules ?? "none"]))));
	}

	api.on("status", update);
	update();
	attempt(configuration, async () => {
		const text = await api.text("/api/configuration");
		put(configuration, h("div.head", h("h2", "Configuration"), copier("Copy", text)), h("pre.box", shown(text, 200000,
			true)));
	});
}
