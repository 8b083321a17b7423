// What goes on in every tab: the feed of requests, and samples of state and metrics.
import {tell} from "./elements.js";

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

// The newest requests by long poll. Tells `feed` after each.
export function follow(api, ended) {
	let turn, after;
	const feed = {filters: {}, records: [], seen: 0, lost: 0, use(filters) {
		if (JSON.stringify(filters) === JSON.stringify(feed.filters)) return;
		after = undefined;
		feed.filters = filters;
		turn.abort();
	}};

	async function run() {
		for (let failures = 0; !ended.aborted;) {
			const {signal} = turn = new AbortController(), own = AbortSignal.any([signal, ended]);
			const query = new URLSearchParams({...feed.filters, ...after !== undefined && {after}, wait: "20s"});
			try {
				const {requests, next, lost} = await api.get(`/api/requests?${query}`, {signal: own});
				if (after === undefined) Object.assign(feed, {records: [], seen: 0, lost: 0});
				Object.assign(feed, {records: [...requests.reverse(), ...feed.records].slice(0, 500), problem: null,
					seen: feed.seen + requests.length, lost: feed.lost + lost});
				[after, failures] = [next, 0];
			} catch (problem) {
				if (own.aborted) continue;
				// A gateway that has started again counts from the beginning.
				[feed.problem, after, failures] = [problem, undefined, failures + 1];
			}
			tell("feed");
			await sleep(failures ? Math.max((feed.problem.wait || 0) * 1000, Math.min(8000, 500 * 2 ** failures)) : 200);
		}
	}

	run();
	return feed;
}

// The state, and a point of the metrics each five seconds, for fifteen minutes. Tells `status`.
export async function sample(api, signal) {
	for (const points = []; !signal.aborted; await sleep(5000)) {
		// The feed reports a connection that is lost.
		const read = (path, as) => as(path, {signal}).catch(() => "");
		const state = await read("/api/state", api.get), text = await read("/api/metrics", api.text);
		if (!state) continue;
		points.push(point(text));
		if (points.length > 181) points.shift();
		Object.assign(api, {state, points});
		tell("status");
	}
}

function point(text) {
	const sums = {time: Date.now(), failures: 0, requests: 0}, limits = new Map();
	for (const [, name, labels, value] of text.matchAll(/^(\w+)(?:\{(.*)\})? (\S+)/gm)) {
		const number = Number(value), [, limit] = /le="([^"]*)"/.exec(labels) ?? [];
		if (name === "sluice_requests_total") {
			sums.requests += number;
			if (labels.includes('status="5xx"')) sums.failures += number;
		} else if (name === "process_resident_memory_bytes") sums.memory = number;
		else if (name === "sluice_request_duration_seconds_bucket") limits.set(limit, (limits.get(limit) ?? 0) + number);
	}
	return {...sums, limits: [...limits].map(([limit, total]) => [limit === "+Inf" ? Infinity : Number(limit), total])};
}
