// Uploads of this page, and upload sessions of the gateway.
import {asking, attempt, bytes, cut, duration, encode, failure, h, put, table} from "./elements.js";
import {transfers} from "./transfers.js";

export function mount(element, api) {
	const uploads = api.kept.uploads ??= transfers(api), body = h("tbody"), problem = h("div"), none = h("p.faint");
	const sessions = table("table", ["session", "bucket", "protocol", "caller", "received", "age", "expires in",
		"action"], body);
	element.append(h("div.page", h("h2", "Uploads of this page"), h("p.faint", "Choose or drop files in ",
		h("a", {href: "#objects"}, "Objects"), "."), uploads.element, h("h2", "Sessions of the gateway"), problem, none,
			sessions));

	const load = () => attempt(problem, async () => {
		const {uploads: found, isComplete, failures = []} = await api.get("/api/uploads");
		put(problem, failures.map(({bucket, detail}) => failure({message: `${bucket}: ${detail}`})),
			!isComplete && !failures[0] && "There are more.");
		put(none, !found.length && "No session is open.");
		sessions.hidden = !found.length;
		if (body.contains(document.activeElement)) return;
		put(body, found.map(({id, bucket, protocol, caller = "anonymous", offset, length, ageSeconds, expires}) => h("tr",
			[h("code", cut(id, 14)), cut(bucket), protocol, cut(caller), [bytes(offset), length && ` of ${bytes(length)}`],
				duration(ageSeconds * 1000), expires && duration(Math.max(0, new Date(expires) - Date.now())),
				asking("Cancel", () => attempt(problem, async () => {
					await api.send(`/api/uploads?id=${encode(id)}`, {method: "DELETE"});
					document.activeElement.blur();
					load();
				}))].map(cell => h("td", cell)))));
	});
	load();
	const timer = setInterval(load, 4000);
	return () => clearInterval(timer);
}
