// An editor of rules: a field over the same text with colours. The gateway says where things are.
import {h, put} from "./elements.js";

const coverages = ["", "never", "always", "both"];
const kinds = {error: 4, warning: 8, mark: 16, comment: 32, string: 64, keyword: 128};
const tokens = new RegExp(String.raw`(\/\/.*|\/\*[^]*?(?:\*\/|$))|('(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")`
	+ String.raw`|\b(?:allow|function|if|let|match|return|rules_version|service)\b`, "g");

export function editor(changed) {
	let shown = {};
	const colours = h("pre", {ariaHidden: "true"}), gutter = h("pre.gutter", {ariaHidden: "true"});
	const area = h("textarea", {spellcheck: false, wrap: "off", ariaLabel: "Source of the rules", oninput: () => {
		paint({});
		changed(area.value);
	}}), element = h("div.editor", gutter, h("div.code", colours, area));

	function paint({issues = [], coverage = {}, marked}) {
		// Each character has bits; the first two are its coverage. Offsets count code points.
		const text = area.value, bits = new Uint8Array(text.length), spans = [], units = [0], outcomes = [];
		for (const character of text) units.push(units.at(-1) + character.length);
		const fill = ({currentOffset: start, endOffset = start}, bit, kept = 255) => {
			for (let i = units[start]; i < units[endOffset + 1]; i += 1) bits[i] = bits[i] & kept | bit;
		};
		for (const {0: token, 1: comment, 2: string, index} of text.matchAll(tokens)) {
			bits.fill(comment ? kinds.comment : string ? kinds.string : kinds.keyword, index, index + token.length);
		}
		const covered = Object.values(coverage).flat().map(({sourcePosition, values}) => ({...sourcePosition, values}));
		covered.sort((a, b) => a.currentOffset - b.currentOffset || b.endOffset - a.endOffset);
		for (const part of covered) {
			if (part.values[0]?.value !== "request") fill(part, Math.min(3, part.values.length + 1), ~3);
		}
		for (const {sourcePosition, severity} of issues) if (sourcePosition) fill(sourcePosition,
			kinds[severity.toLowerCase()]);
		if (marked?.endOffset) fill(marked, kinds.mark);
		for (let start = 0, end; start < text.length; start = end) {
			for (end = start + 1; bits[end] === bits[start];) end += 1;
			const names = Object.keys(kinds).filter(name => bits[start] & kinds[name]);
			spans.push(h("span", {className: [coverages[bits[start] & 3], ...names].join(" ")}, text.slice(start, end)));
		}
		put(colours, spans, "\n");
		for (const {sourcePosition: {line}, values} of coverage.conditions ?? []) {
			outcomes[line] = values.map(({value, count}) => ` ${value === "true" ? "✓" : "✗"}${count}`).join("") || " never";
		}
		put(gutter, text.split("\n").map((_, i) => `${i + 1}${outcomes[i + 1] ?? ""}`).join("\n"));
		shown = {issues, coverage, marked};
	}

	return {
		element,
		get source() { return area.value; },
		set source(text) {
			area.value = text;
			paint({});
		},
		show: changes => paint({...shown, ...changes}),
		open(marked) {
			paint({...shown, marked});
			element.scrollTop = (marked.line - 1) * 18 - element.clientHeight / 3;
		},
	};
}

// The lines of two texts with "-", "+" or " ".
export function difference(before, after) {
	const a = before.split("\n"), b = after.split("\n"), lines = [];
	for (let i = 0, j = 0; i < a.length || j < b.length;) {
		let p = a.length, q = b.length;
		for (let sum = 0; sum < p - i + q - j && sum < 3000; sum += 1) {
			for (let k = 0; k <= sum; k += 1) {
				if (i + k < a.length && a[i + k] === b[j + sum - k]) [p, q, k] = [i + k, j + sum - k, sum];
			}
		}
		lines.push(...a.slice(i, p).map(line => ["-", line]), ...b.slice(j, q).map(line => ["+", line]));
		if (p < a.length) lines.push([" ", a[p]]);
		[i, j] = [p + 1, q + 1];
	}
	return lines;
}
