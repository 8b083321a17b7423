// Uploads of this page by the IETF's resumable protocol. They go on when the tab changes.
import {button, bytes, failure, h, put, shown, tell} from "./elements.js";

const slice = 2 << 20, attempts = 5;

function transfer(api, bucket, name, file, changed) {
	const {size, type} = file, {fields} = api.caller, bar = h("progress", {max: size || 1, ariaLabel: "sent"});
	const text = h("span.faint"), actions = h("span.actions"), problem = h("div");
	const self = {bucket, name, run, element: h("li", h("b", shown(`${bucket}/${name}`, 120)), bar, text, actions,
		problem)};
	let session, offset, turn, replaces, isLost;

	async function run() {
		set("sending");
		for (let failures = 0; self.state === "sending";) {
			turn = new AbortController();
			try {
				await step();
				failures = 0;
			} catch (error) {
				const {status} = error;
				if (self.state !== "sending") return;
				if (status && status !== 409 && status < 500 || (failures += 1) > attempts) {
					if (status === 404 || status === 412) session = null;
					return set("failed", error);
				}
				isLost = true;
				await new Promise(resolve => setTimeout(resolve, 1000 * failures));
			}
		}
	}

	const request = (path, method, more, body) =>
		api.send(path, {method, body, signal: turn.signal, headers: {...fields, ...more}});

	async function step() {
		if (!session) {
			const {headers} = await request(api.objectPath(bucket, name), "PUT", {"Upload-Complete": "?0", "Upload-Length": size,
				...type && {"Content-Type": type}, ...!replaces && {"If-None-Match": "*"}});
			// This page reaches the gateway at its own address only.
			session = new URL(headers.get("location"), location).pathname;
			[offset, isLost] = [0, false];
		} else if (isLost) {
			offset = Number((await request(session, "HEAD")).headers.get("upload-offset"));
			isLost = false;
		} else {
			const end = Math.min(size, offset + slice), isLast = end === size;
			await request(session, "PATCH", {"Upload-Offset": offset, "Upload-Complete": isLast ? "?1" : "?0",
				"Content-Type": "application/partial-upload"}, file.slice(offset, end));
			offset = end;
			set(isLast ? "done" : "sending");
		}
	}

	function set(state, error) {
		const exists = error?.status === 412, before = self.state;
		self.state = state;
		bar.value = state === "done" ? bar.max : offset ?? 0;
		put(text, `${Math.floor(bar.position * 100)} % of ${bytes(size)} · ${state}`);
		if (state === before) return;
		const resume = () => {
			replaces ||= exists;
			run();
		};
		put(actions, state === "done" ? button("Remove", () => changed(self)) : [/ing$/.test(state) ? button("Pause", pause)
			: button(exists ? "Replace it" : "Resume", resume), button("Cancel", cancel)]);
		put(problem, error && failure(exists ? {message: "There is an object of this name."} : error, "create"));
		changed();
		if (state === "done") tell("uploaded", self);
	}

	function pause() {
		set("paused");
		isLost = true;
		turn?.abort();
	}

	function cancel() {
		pause();
		changed(self);
		turn = new AbortController();
		if (session) request(session, "DELETE").catch(() => {});
	}

	set("waiting");
	return self;
}

// Two are sent at a time. Tells `uploaded` when one is done.
export function transfers(api) {
	const all = new Set(), element = h("ul.transfers");
	const sending = () => [...all].filter(({state}) => state === "sending").length;
	const changed = removed => {
		all.delete(removed);
		if (sending() < 2) [...all].find(({state}) => state === "waiting")?.run();
		put(element, [...all].map(each => each.element));
	};
	window.addEventListener("beforeunload", event => sending() && event.preventDefault());
	return {element, add(bucket, folder, files) {
		for (const file of files) all.add(transfer(api, bucket, folder + file.name, file, changed));
		changed();
	}};
}
