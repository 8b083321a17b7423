// What edited rules say to a request, to the last real requests, and to a suite. Nothing is saved.
import {attempt, button, count, cut, date, debounced, encode, failure, h, labelled, link, objectOf, options, put,
	save, select,
	shown, sign} from "./elements.js";
import {difference, editor as makeEditor} from "./editor.js";
import {explained} from "./explanation.js";

const example = '{"size": 1000, "contentType": "image/png"}';

export function mount(element, api) {
	const kept = api.kept.rules = {edited: {}, form: {method: "get", resource: "null"}, suite: "", ...api.kept.rules};
	let all, effective, file, formatted, isRight, round = 0;

	const editor = makeEditor(edited), bucket = select({ariaLabel: "bucket", onchange: () => attempt(about, load)}, []);
	const about = h("span.faint"), checked = h("span"), issues = h("div.below"), diff = h("pre.diff", {hidden: true});
	const format = button("Format", () => edited(editor.source = formatted));
	const revert = button("Revert", () => edited(editor.source = effective));
	const compare = button("Compare", () => {
		diff.hidden = !diff.hidden;
		editor.element.hidden = compare.ariaPressed = !diff.hidden;
		edited(editor.source);
	});

	async function load() {
		const {bucket: name, file: found, since, shadow, failure: problem} = all.find(entry => entry.bucket === bucket.value);
		[kept.bucket, file] = [name, found];
		put(about, file ? [cut(file), since && ` in effect since ${date(since)}`, shadow && [" · ", link(["shadow: ", cut(shadow)],
			tryShadow)]] : "rules: none, everything is allowed", problem && failure({message: problem}));
		const text = file && await api.text(`/api/rules/source?bucket=${encode(name)}`);
		effective = text?.replaceAll("\r\n", "\n") ?? "";
		edited(editor.source = kept.edited[name] ?? effective);
		if (kept.position) editor.open(kept.position);
		kept.position = null;
	}

	const tryShadow = () => attempt(about, async () =>
		edited(editor.source = await api.text(`/api/rules/source?bucket=${encode(kept.bucket)}&shadow`)));

	function edited(source) {
		const isEdited = source !== effective, lines = isEdited && !diff.hidden ? difference(effective, source) : [];
		kept.edited[kept.bucket] = isEdited ? source : undefined;
		revert.hidden = !isEdited;
		put(compare, isEdited ? "Compare (edited)" : "Compare");
		put(diff, isEdited ? lines.map(([kind, line], i) => lines.slice(Math.max(0, i - 3),
			i + 4).some(([near]) => near !== " ")
			&& h({"+": "ins", "-": "del"}[kind] ?? "span", `${kind} `, shown(line))) : "Nothing is edited.");
		evaluate();
		if (isEdited) replayLater();
	}

	const verdict = h("div"), notice = h("div"), result = h("div");
	const field = (name, label, placeholder, tag = "input") => labelled(label, h(tag, {name, placeholder,
		spellcheck: false,
		value: kept.form[name] ?? ""}));
	const request = h("form.request", {oninput: ({target}) => {
		kept.form[target.name] = target.value;
		evaluate();
	}, onsubmit: event => event.preventDefault()},
	labelled("method", select({name: "method"}, ["get", "list", "create", "update", "delete"])),
	field("path", "path", "users/alice/cat.png"),
	field("auth", "auth: null, a uid, or with claims", '{"uid": "alice", "token": {}}'),
	field("resource", "resource: the stored object, or null", "unknown", "textarea"),
	field("new", "request.resource: the new object of create and update", example, "textarea"),
	h("details", h("summary", "time, parameters, documents"), field("time", "time", "now"), field("params", "parameters",
		'{"a": "b"}'),
		field("documents", "documents", '{"/databases/(default)/documents/teams/blue": {"size": 3}}', "textarea")));
	const form = request.elements;

	function fill(inputs) {
		for (const {name} of form) {
			const value = inputs[name];
			form[name].value = kept.form[name] = typeof value === "string" ? value : JSON.stringify(value) ?? "";
		}
		form.path.value = kept.form.path = kept.form.path.replace(/^\/b\/[^/]*\/o\/?/, "");
		evaluate();
	}

	// The inputs in the form; absent where nothing is typed.
	const inputs = () => Object.fromEntries(Object.entries({...kept.form, auth: kept.form.auth || "null",
		new: /create|update/.test(kept.form.method) && kept.form.new, path: `/b/${kept.bucket}/o/${kept.form.path ?? ""}`,
	}).filter(([, value]) => value).map(([name, value]) => {
		try {
			return [name, /^\s*[{[]|^null$/.test(value) ? JSON.parse(value) : value];
		} catch (error) {
			throw new Error(`${name} is not JSON: ${error.message}`);
		}
	}));

	const loadObject = () => attempt(notice, async () => {
		put(notice);
		const response = await api.object(`${api.objectPath(kept.bucket, form.path.value)}?metadata`).catch(error => {
			if (error.status !== 404) throw error;
		});
		const {fullPath: name, customMetadata: metadata, ...rest} = await response?.json() ?? {};
		fill({...inputs(), resource: name ? {...rest, name, metadata} : null});
	}, "get");

	const evaluate = debounced(() => element.contains(request) && attempt(verdict, async () => {
		const {source} = editor, mine = round += 1, {issues: found, formatted: next} = await api.post("/api/rules/check",
			{source});
		if (mine !== round) return;
		const errors = found.filter(({severity}) => severity === "ERROR").length;
		[formatted, isRight, format.disabled] = [next, !errors, !next || next === source];
		put(checked, sign(isRight), `errors: ${errors}, warnings: ${found.length - errors}`);
		put(issues, found.map(({severity, sourcePosition: at, description, hint = ""}) => h("p",
			severity === "ERROR" ? h("b.bad", "✗ error ") : h("b.warn", "! warning "),
			at && link(`${at.line}:${at.column}`, () => editor.open(at)), " ", shown(description), " ", h("span.faint",
				shown(hint)))));
		editor.show({issues: found});
		if (!isRight || !kept.form.path) {
			return put(verdict, h("p.note", isRight ? "Type a path to see what the rules say."
				: "Rules with errors say nothing."));
		}
		const {explanation, findings} = await api.post("/api/rules/explain", {source, bucket: kept.bucket,
			request: inputs()});
		if (mine === round) {
			put(verdict, explanation ? explained(explanation, file ?? "rules", at => editor.open(at))
				: failure({message: findings.join("\n")}));
		}
	}), 300);

	function say(coverage, ...parts) {
		put(result, parts, h("p.faint", h("span.both", "several outcomes"), " ", h("span.always", "only one"), " ",
			h("span.never", "never evaluated")));
		editor.show({coverage});
		api.say(result.firstChild.textContent);
	}

	const replay = () => attempt(result, async () => {
		const {source} = editor;
		const {evaluated, same, denied, allowed, undetermined, changed, coverage} = await api.post("/api/rules/replay",
			{source, bucket: kept.bucket});
		if (source !== editor.source) return;
		const groups = Map.groupBy(changed, ({line, now}) => [line.operation, line.path, line.principal, now].join("\n"));
		say(coverage, h("p", evaluated ? "" : "No request of this bucket is kept. ", h("b", count(same)), " the same, ", h("b.bad", count(denied)), " now denied, ", h("b.good",
			count(allowed)),
			" now allowed", undetermined > 0 && `, ${count(undetermined)} unknown`),
		[...groups.values()].map(([{request: id, was, now, line, position: at}, ...more]) => h("p", sign(now === "allowed"),
			link([line.operation, " ", cut(objectOf(line))], () => take(id)), " as ", cut(line.principal ?? "anonymous"),
			more.length > 0 && ` ×${more.length + 1}`, h("span.faint", `: ${was} → ${now} `),
			at && link(`${at.line}:${at.column}`, () => editor.open(at)))));
	});
	const replayLater = debounced(() => element.contains(request) && isRight && replay(), 1200);
	const take = id => attempt(notice, async () =>
		fill((await api.get(`/api/requests/explanation?request=${encode(id)}`)).inputs));

	const suite = h("textarea", {rows: 8, value: kept.suite, oninput: () => { kept.suite = suite.value; },
		placeholder: "cases:\n  - { method: get, path: /b/photos/o/a, auth: alice, expect: allow }"});
	const suiteFile = h("input", {type: "file", ariaLabel: "file of a test suite", onchange: async () => {
		suite.value = kept.suite = await suiteFile.files[0].text();
		run();
	}});
	const run = () => attempt(result, async () => {
		const {passed, failed, results, coverage} = await api.post("/api/rules/test",
			{source: editor.source, bucket: kept.bucket, suite: suite.value});
		say(coverage, h("p", h("b.good", passed), " passed, ", h("b.bad", failed), " failed"),
			results.sort((a, b) => a.state.localeCompare(b.state)).map(({name, place, failure: why, inputs}) =>
				h("p", sign(!why), link(cut(name), () => fill(inputs)), h("span.faint", ` ${place} `), shown(why ?? ""))));
	});

	element.append(h("div.bar", bucket, about, checked, h("span.actions", format,
		button("Download", () => save(editor.source, file?.split("/").at(-1) ?? "storage.rules")), revert, compare)),
	h("div.split.rules", h("div.source", editor.element, diff, issues), h("aside", {ariaLabel: "Evaluation"},
		h("h2", "What would they change?"), h("div.actions", button("Replay the last requests", replay)),
		h("details", h("summary", "Run a test suite"), labelled("cases", suite), h("div.actions", button("Run the suite",
			run), suiteFile)), result, h("h2", "What would the rules say?"), request, button("Load the stored object",
			loadObject), notice, verdict)));
	form.method.value = kept.form.method;
	if (kept.inputs) fill(kept.inputs);
	kept.inputs = null;
	attempt(about, async () => {
		all = (await api.get("/api/rules")).buckets;
		const names = all.map(entry => entry.bucket);
		put(bucket, options(names));
		bucket.value = names.includes(kept.bucket) ? kept.bucket : names[0];
		await load();
	});
}
