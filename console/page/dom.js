// Creation of elements without HTML, so that names of servers, keys and policies never become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") Object.assign(element.style, value); // The content security policy forbids the attribute.
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Creates an element: h("button", { class: "button", onclick }, "Ban"). Children are elements or text. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replaces the children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Runs a function repeatedly until the signal aborts, with `pause` milliseconds between two runs. */
export function repeat(pause, signal, run) {
  let timer;
  const runOnce = async () => {
    if (signal.aborted) return;
    // Paused while the page is in the background.
    if (!document.hidden) await run().catch(() => {});
    if (!signal.aborted) timer = setTimeout(runOnce, pause);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || signal.aborted) return;
    clearTimeout(timer);
    runOnce();
  }, { signal });
  return runOnce();
}

/**
 * Shows one element for each item. Existing elements are reused, so that focus and selection are kept. `make(item)` returns
 * [element, update]; update(item) is called with each new state of the item.
 */
export function putKeyed(parent, items, keyOf, make) {
  const entries = (parent.entries ??= new Map());
  const keys = new Set(items.map(keyOf));
  for (const [key, [element]] of entries) {
    if (keys.has(key)) continue;
    element.remove();
    entries.delete(key);
  }
  // Moving an element would lose its focus, so nothing is moved while an element inside has it.
  const hasFocus = parent.contains(document.activeElement);
  let next = parent.firstElementChild;
  for (const item of items) {
    let entry = entries.get(keyOf(item));
    if (!entry) entries.set(keyOf(item), (entry = make(item)));
    const [element, update] = entry;
    update?.(item);
    if (!element.parentElement) parent.insertBefore(element, hasFocus ? null : next);
    else if (!hasFocus && element !== next) parent.insertBefore(element, next);
    if (element === next) next = next.nextElementSibling;
  }
}
