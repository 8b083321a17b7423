// The objects of the buckets, as the caller whose token is typed in.
import {asking, attempt, button, bytes, copier, count, cut, date, encode, facts, h, json, labelled, put, quoted, rows, save,
	select, shown, table} from "./elements.js";
import {transfers} from "./transfers.js";

const maximumDownload = 256 << 20;
const writable = ["contentType", "cacheControl", "contentDisposition", "contentEncoding", "contentLanguage"];

export function mount(element, api) {
	const {buckets, listeners} = api.state, uploads = api.kept.uploads ??= transfers(api);
	let bucket, folder, loaded;

	const choice = select({ariaLabel: "bucket", onchange: () => {
		bucket = choice.value;
		location.hash = to("").hash;
	}}, buckets.map(({name}) => name));
	const crumbs = h("span"), body = rows(), after = h("div.after"), counters = h("span.counters");
	const panel = h("aside", {ariaLabel: "Object", hidden: true});
	const chosen = h("input", {type: "file", multiple: true, hidden: true, onchange: () => {
		uploads.add(bucket, folder, chosen.files);
		chosen.value = "";
	}});
	const drop = event => {
		event.preventDefault();
		list.classList.toggle("dropping", event.type === "dragover");
		if (event.type === "drop") uploads.add(bucket, folder, event.dataTransfer.files);
	};
	const list = h("div.list", {ondragover: drop, ondragleave: drop, ondrop: drop},
		table("table", ["object", "size", "type", "updated"], body), after, uploads.element);
	element.append(h("div.bar", choice, crumbs, counters, chosen, button("Upload files", () => chosen.click(),
		{className: "primary"})),
		h("div.split", list, panel));

	const to = (name, text = "", attributes) =>
		h("a", {href: `#objects/${[bucket, ...name.split("/")].map(encode).join("/")}`, ...attributes}, text);

	function open() {
		const [first = buckets[0].name, ...path] = api.rest(), name = path.at(-1) ? path.join("/") : "";
		path.pop();
		[bucket, folder] = [first, path.map(part => `${part}/`).join("")];
		choice.value = bucket;
		put(crumbs, to("", "all"), path.map((part, i) => [" / ", to(`${path.slice(0, i + 1).join("/")}/`, cut(part))]));
		if (loaded !== bucket + folder) load();
		for (const row of body.rows) row.ariaCurrent = row.dataset.name === name ? "true" : null;
		panel.hidden = !name;
		if (name) show(name);
	}

	const load = pageToken => attempt(after, async () => {
		const key = loaded = bucket + folder;
		if (!pageToken) put(body);
		put(counters);
		put(after, "Loading …");
		const query = new URLSearchParams({prefix: folder, delimiter: "/", maxResults: 100, view: "full", ...pageToken
			&& {pageToken}});
		const {prefixes, items, nextPageToken} = await (await api.object(`/b/${encode(bucket)}/o?${query}`)).json();
		if (key !== loaded) return;
		const folders = prefixes.map(fullPath => ({fullPath, contentType: "folder"}));
		body.append(...[...folders, ...items].map(({fullPath, size, contentType = "", updated}, i) => h("tr",
			{"data-name": fullPath},
			h("td.object", to(fullPath, cut(fullPath.slice(folder.length), 300), {tabIndex: i || pageToken ? -1 : 0})),
			h("td.size", size && bytes(Number(size))), h("td.type", cut(contentType)), h("td.updated", updated
				&& date(updated)))));
		put(counters, `${count(body.rows.length)} shown`);
		put(after, nextPageToken ? button("Load more", () => load(nextPageToken)) : !body.rows.length && h("div.empty",
			h("h2", "Nothing here"), "Choose files to upload, or drop them here."));
	}, "list");

	const show = name => {
		const path = api.objectPath(bucket, name), content = h("div"), result = h("div");
		const up = to(folder, "✕", {ariaLabel: "Close"});
		put(panel, h("div.head", h("h2", shown(name)), up), content);
		const request = (query, method, value) => api.object(path + query, {method, ...value && json(value)});
		const base = `http://${listeners.http ?? "GATEWAY"}`;
		const bearer = api.caller.fields.Authorization ? '-H "Authorization: Bearer $TOKEN" ' : "";
		const curl = `curl ${bearer}-O ${quoted(base + path)}`;
		const told = (what, text) => put(result, h("p.note", what, h("br"), h("code", shown(text, 3000)), " ",
			copier("Copy", text)));

		return attempt(content, async () => {
			const {customMetadata = {}, size, ...properties} = await (await request("?metadata")).json();
			const download = () => attempt(result, async () => {
				if (size > maximumDownload) return told("Too large for the page:", curl);
				put(result, "Downloading …");
				save(await (await request("")).blob(), properties.name);
				put(result);
			}, "get");
			const sign = () => attempt(result, async () => {
				const {path: target, expires} = await (await request("?sign", "POST", {method: "GET"})).json();
				told(`Downloads the object until ${date(expires)}.`, base + target);
			}, "get");
			const edit = () => {
				const values = Object.fromEntries(writable.map(key => [key, properties[key] ?? null])), problem = h("div");
				const area = h("textarea", {rows: 12, value: JSON.stringify({...values, customMetadata}, null, 2)});
				const update = () => attempt(problem, async () => {
					const patch = JSON.parse(area.value);
					for (const key in customMetadata) if (patch.customMetadata) patch.customMetadata[key] ??= null;
					await request("", "PATCH", patch);
					show(name);
				}, "update");
				put(result, h("form.box", labelled("metadata as JSON; null removes", area), problem,
					h("div.actions", button("Save", update, {className: "primary"}), button("Cancel", () => put(result)))));
			};
			const remove = () => attempt(result, async () => {
				await request("", "DELETE");
				loaded = "";
				up.click();
			}, "delete");
			put(content, h("div.actions", button("Download", download, {className: "primary"}), button("Edit metadata", edit),
				button("Sign a link", sign), copier("Copy as curl", curl), asking("Delete", remove)), result,
			facts({size: `${bytes(Number(size))} (${count(Number(size))} bytes)`, ...properties}), h("h3", "customMetadata"),
			facts(customMetadata));
		}, "get");
	};

	api.on("moved", open);
	api.on("caller", () => {
		loaded = "";
		open();
	});
	api.on("uploaded", ({detail}) => detail.bucket === bucket && detail.name.startsWith(folder) && load());
	open();
}
