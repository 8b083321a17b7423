// The requests of the gateway as they come, and why one was allowed or denied.
import {button, bytes, clock, copier, count, cut, debounced, duration, encode, facts, failure, h, objectOf, put,
	quoted, rows, select, shown, sign, table} from "./elements.js";
import {explained} from "./explanation.js";

const columns = ["time", "decision", "operation", "bucket", "object", "caller", "duration", "size", "cause"];
const mark = decision => decision ? sign(decision === "allowed") : "– ";

function row({decision, shadow, line}) {
	const {operation, method, status, cause = line.code ?? "", s3_operation: s3} = line;
	const size = operation === "create" ? line.bytes_in : line.bytes_out;
	const cells = [clock(line.time), [mark(decision), h("span.unseen", decision), h(status < 500 ? "span" : "b.warn",
		status)],
		operation ?? method, cut(line.bucket ?? "–"),
		h("a", {href: `#requests/${encode(line.request)}`, tabIndex: -1}, cut(objectOf(line) || "/", 300)),
		cut(line.principal ?? "anonymous"), duration(line.duration_ms), size > 0 && bytes(size),
		[shadow && shadow !== decision && h("span.tag", `shadow: ${shadow}`), s3 && h("span.tag", cut(s3)),
			cut(cause.replace(/^\S*\/(?=[^/\s]+:\d+:\d+: )/, ""), 200)]];
	return h("tr", {id: line.request}, cells.map((cell, i) => h(`td.${columns[i]}`, cell)));
}

function command({method, path, auth}, {host, tls, s3_operation: s3} = {}, own) {
	if (host === location.host) host = own;
	const base = host && !s3 ? `http${tls ? "s" : ""}://${host}` : "http://GATEWAY";
	return ["curl", auth && '-H "Authorization: Bearer $TOKEN"', {create: "-T FILE", delete: "-X DELETE",
		update: "-X PATCH --json @FILE"}[method],
	quoted(base + path.split("/").map(encode).join("/") + (method === "list" ? "/" : ""))].filter(Boolean).join(" ");
}

export function mount(element, api) {
	const {feed, state: {buckets, listeners}} = api, filters = api.kept.requests ??= {};
	let top, isPaused = false, seenAtPause = 0, opened;

	const use = debounced(() => feed.use(Object.fromEntries(Object.entries(filters).filter(([, value]) => value))), 300);
	const choice = (name, ...list) => select({name, ariaLabel: name}, list);
	const field = (name, text) => h("input", {type: "search", name, placeholder: text, ariaLabel: text});
	const body = rows(), counters = h("span.counters"), empty = h("div.empty"), panel = h("aside", {ariaLabel: "Request"});
	const pause = button("", () => {
		[isPaused, seenAtPause] = [!isPaused, feed.seen];
		update();
	});
	const bar = h("form.bar", {role: "search", onsubmit: event => event.preventDefault(), oninput: ({target}) => {
		filters[target.name] = target.value.trim();
		use();
	}}, field("path", "path prefix"), field("caller", "caller"), field("status", "status: 403, 5xx"),
	choice("decision", ["", "all decisions"], "allowed", "denied", ["shadow", "shadow differs"]),
	choice("bucket", ["", "all buckets"], ...buckets.map(({name}) => name)), pause, counters), controls = bar.elements;
	element.append(bar, h("div.split", h("div.list", table("table.requests", columns, body), empty), panel));

	function update() {
		const isFiltered = Object.values(filters).some(Boolean), {records, seen, lost} = feed, waiting = seen - seenAtPause;
		if (!isPaused) {
			const at = records.findIndex(({line}) => line.request === top), fresh = records.slice(0, at < 0 ? 500 : at);
			if (at < 0) put(body);
			else if (at) api.say(`${at} new requests`);
			body.prepend(...fresh.map(row));
			while (body.rows.length > 500) body.lastChild.remove();
			top = records[0]?.line.request;
			if (!body.querySelector("[tabindex='0']")) body.querySelector("a")?.setAttribute("tabindex", 0);
		}
		pause.ariaPressed = isPaused;
		put(pause, isPaused ? `Resume (${count(waiting)} new)` : "Pause");
		put(counters, `${count(seen)} seen${lost ? ` · ${count(lost)} not shown (too fast)` : ""}${isFiltered ? " · others are not kept" : ""}`);
		empty.hidden = body.rows.length > 0;
		put(empty, h("h2", isFiltered ? "No request matches the filters" : "Waiting for requests"),
			"Nothing is recorded while this page is closed.");
	}

	async function open() {
		const [id] = api.rest(), record = feed.records.find(({line}) => line.request === id), line = record?.line;
		for (const row of body.rows) row.ariaCurrent = row.id === id ? "true" : null;
		panel.hidden = !id;
		if (opened === id) return;
		opened = id;
		if (!id) return;
		const content = h("div", "Loading …");
		put(panel, h("div.head", h("h2", line ? [mark(record.decision), `${line.operation ?? line.method} `,
			shown(line.bucket ? `${line.bucket}/${objectOf(line)}` : line.path)] : ["Request ", shown(id)]),
		h("a", {href: "#requests", ariaLabel: "Close"}, "✕")), content,
		line && [h("h3", "Access line"), facts(line)]);
		try {
			const found = await api.get(`/api/requests/explanation?request=${encode(id)}`);
			if (opened === id) put(content, explanation(found, line));
		} catch (error) {
			if (opened === id) {
				put(content, error.status !== 404 ? failure(error) : h("p.note", record?.explains === false
					? "No rule was evaluated for this request."
					: "The explanation is no longer kept. Repeat the request."));
			}
		}
	}

	function explanation({explanation, inputs, bucket, rules, shadow, decision, case: test}, line) {
		const show = position => {
			api.kept.rules = {...api.kept.rules, bucket, inputs, position};
			location.hash = "rules";
		};
		return [explained(explanation, rules.file ?? "rules", show),
			shadow && shadow !== decision && h("p.note", `The shadow rules decide otherwise: ${shadow}.`),
			!rules.isCurrent && h("p.note", "The rules have changed since this request."),
			h("div.actions", button("Open in Rules", () => show(null), {className: "primary"}), copier("Copy as test case",
				test),
				copier("Copy as curl", command(inputs, line, listeners.http))), h("h3", "Inputs of the rules"), h("pre",
					shown(JSON.stringify(inputs, null, 2), 3000, true))];
	}

	for (const name in filters) controls[name].value = filters[name];
	api.on("feed", update);
	api.on("moved", open);
	use();
	update();
	open();
	// Other tabs need all requests: to replay them, and to explain a denial.
	return () => feed.use({});
}
