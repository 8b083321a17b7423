// Why a request was allowed or denied: what decided in one sentence, then all values.
import {h, link, shown} from "./elements.js";

const errorOf = ({error}) => error?.replace(/^Error: .*?column \[\d+\]\. /, "").replace(/\.$/, "");
const textOf = outcome => outcome.error ? `error: ${errorOf(outcome)}` : outcome.needs
	? `unknown: ${outcome.needs.join(", ")}`
	: String(outcome.value);
const partsOf = step => step.parts.filter(part => part.text !== textOf(part.outcome));
const code = text => h("code", shown(text));
const outcomeOf = (outcome, text = textOf(outcome)) => h(outcome.value === true ? "b.good"
	: outcome.value === false || outcome.error ? "b.bad" : outcome.needs ? "b.warn" : "span.value", shown(text, 160));

function deciding(step) {
	const same = partsOf(step).filter(part => textOf(part.outcome) === textOf(step.outcome));
	return same.length === 1 ? deciding(same[0]) : step;
}

// "A is false, because B is 'alice' and C is 'bob'."
function sentence({methods, condition, sourcePosition}, open) {
	if (!condition) return [code(`allow ${methods}`), " has no condition. ", open(sourcePosition)];
	const step = deciding(condition), is = ({text, outcome}) => [code(text), outcome.error
		? [" fails: ", outcomeOf(outcome, errorOf(outcome))] : [" is ", outcomeOf(outcome)]];
	return [is(step), partsOf(step).map((part, i) => [i ? " and " : ", because ", is(part)]), ". ",
		open(step.sourcePosition)];
}

function verdict({decision, reason, message, needs}, rules, open) {
	const head = decision === "ALLOW" ? h("b.good", "✓ Allowed: ") : needs ? h("b.warn", "? Undecided: ") : h("b.bad",
		"✗ Denied: ");
	return rules.length === 1 ? h("p", head, sentence(rules[0], open))
		: [h("p", head, needs ? ["It depends on ", code(needs.join(", ")), "."]
			: reason === "noMatch" ? "No match block with a rule for this method matches the path." : message),
			h("ul", rules.map(rule => h("li", code(`allow ${rule.methods}`), ": ", sentence(rule, open))))];
}

function tree(step, decisive, above) {
	const {line} = step.sourcePosition, decides = decisive.includes(step), parts = partsOf(step);
	return h("li", h(`div.step${decides ? ".decisive" : ""}`, code(step.text), " → ", outcomeOf(step.outcome),
		line !== above && h("small", ` line ${line}`), decides && [" ", h("span.tag", "decides")]),
	parts.length > 0 && h("ul", parts.map(part => tree(part, decisive, line))));
}

export function explained(explanation, file, show) {
	const {blocks, decision} = explanation, all = blocks.flatMap(block => block.rules);
	const rules = decision === "ALLOW" ? all.slice(-1) : all;
	const decisive = rules.map(({condition}) => condition && deciding(condition));
	const open = at => link(shown(`${file}:${at.line}:${at.column}`), () => show(at));
	const head = (word, text, outcome, at) => h("div.head", h("span", h("b", word), code(text), outcome), open(at));
	return h("div", h("div.box.verdict", verdict(explanation, rules, open)),
		blocks.map(block => h("section", head("match ", block.path, "", block.sourcePosition),
			h("p.faint", Object.entries(block.captures).map(([name, value], i) => [i ? ", " : "", code(name), " = ",
				h("span.value", shown(value))])),
			block.rules.map(({methods, outcome, condition, sourcePosition: at}) => [
				head("allow ", methods, [" → ", outcomeOf(outcome)], at), condition && h("ul", tree(condition, decisive,
					at.line))]))));
}
