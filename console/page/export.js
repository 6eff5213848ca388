// Export of tables as files: CSV for spreadsheets, and JSON.
import { toast } from "./dialog.js";
import { h } from "./dom.js";

/** Formats a cell of CSV. Text that a spreadsheet would run as a formula gets an apostrophe, because clients choose keys. */
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "");
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

const csv = (columns, rows) => [columns, ...rows.map((row) => columns.map((column) => row[column]))]
  .map((cells) => `${cells.map(cell).join(",")}\r\n`).join("");

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Creates buttons that save a table. `rows()` resolves to its rows, as objects with the `columns` of the CSV. */
export function exportButtons(name, columns, rows) {
  const button = (format, type, text) => h("button", { type: "button", class: "button small", onclick: async () => {
    try {
      const saved = await rows();
      save(`${name}-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.${format.toLowerCase()}`, type, text(saved));
      toast(`Saved ${saved.length} rows`);
    } catch (error) {
      toast(error.message);
    }
  } }, h("span", { class: "hidden" }, "Export as "), format);
  return [button("CSV", "text/csv", (saved) => csv(columns, saved)), button("JSON", "application/json", (saved) => `${JSON.stringify(saved, null, 2)}\n`)];
}
