// Elements without HTML: what a server, a key or a policy is called never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") Object.assign(element.style, value); // By the object: the policy forbids the attribute.
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element: h("button", { class: "button", onclick }, "Ban"). Children are elements or text. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Puts these children in place of what an element has. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Runs a function again and again until the signal: the next run begins `pause` milliseconds after the last ended. */
export function every(pause, signal, run) {
  let timer;
  const turn = async () => {
    if (signal.aborted) return;
    // Nobody looks at a page in the background.
    if (!document.hidden) await run().catch(() => {});
    if (!signal.aborted) timer = setTimeout(turn, pause);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || signal.aborted) return;
    clearTimeout(timer);
    turn();
  }, { signal });
  return turn();
}

/**
 * Shows one element for each item, and keeps those that are there: what has the focus or is selected stays so.
 * `make(item)` gives [element, update]; update(item) is called with each newer state of the item.
 */
export function keyed(parent, items, keyOf, make) {
  const known = (parent.known ??= new Map());
  const keys = new Set(items.map(keyOf));
  for (const [key, [element]] of known) {
    if (keys.has(key)) continue;
    element.remove();
    known.delete(key);
  }
  // Moving an element takes its focus away: as long as somebody is in here, nothing moves.
  const still = parent.contains(document.activeElement);
  let place = parent.firstElementChild;
  for (const item of items) {
    let entry = known.get(keyOf(item));
    if (!entry) known.set(keyOf(item), (entry = make(item)));
    const [element, update] = entry;
    update?.(item);
    if (!element.parentElement) parent.insertBefore(element, still ? null : place);
    else if (!still && element !== place) parent.insertBefore(element, place);
    if (element === place) place = place.nextElementSibling;
  }
}
